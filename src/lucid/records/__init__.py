"""What a run tells: `record` is one event and its line in the file, `curves` turns many into what can be drawn."""

from lucid.records.record import CLOCK_PREFIXES, KINDS, Record, Tail, last_line_end, read_records, tail

__all__ = ["CLOCK_PREFIXES", "KINDS", "Record", "Tail", "last_line_end", "read_records", "tail"]
