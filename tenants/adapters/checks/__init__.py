"""Static checks of an uploaded adapter. Nothing is executed, and no file is in memory whole."""
