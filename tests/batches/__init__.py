"""Tests of files, batches and background responses."""
