"""The face of Rackwright: one command line, put together from the rooms' own commands. No logic lives here."""
