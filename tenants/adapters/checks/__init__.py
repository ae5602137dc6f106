"""Static checks of an uploaded adapter. Nothing is executed, no file is whole in memory."""
