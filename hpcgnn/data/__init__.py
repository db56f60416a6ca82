"""Source graphs and how they are read and cleaned. Whatever a source or an option gets wrong is one DatasetError."""
