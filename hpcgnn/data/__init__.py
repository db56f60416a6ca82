"""Source graphs and how they are read and cleaned. Every fault of a source or an option is one DatasetError."""
