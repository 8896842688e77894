"""What requests and answers look like, by group. Light to import: the command line reads its options from here."""
