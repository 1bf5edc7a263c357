"""Pages of the console, one module a page: JSON for the browser."""
