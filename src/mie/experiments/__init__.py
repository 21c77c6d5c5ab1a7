"""The papers' comparisons as commands: train, edit, measure and report, resumed by the same command."""
