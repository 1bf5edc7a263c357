"""What the console's pages show, one module a page: JSON for the browser."""
