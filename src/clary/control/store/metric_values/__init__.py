"""Values of metrics in the database: thinned out to curves, and computed into statistics of periods."""
