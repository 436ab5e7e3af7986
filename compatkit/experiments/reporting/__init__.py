"""How results look and are judged: verdicts from paired intervals, tables with their marks, the picture of accuracy against flips."""
