"""Its place makes the helpers beside it (`textbook`, `planted`) importable from every folder of tests."""
