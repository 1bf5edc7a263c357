"""What a program writes into files about its own training, read while the files grow."""
