"""The supervisor process: starts children, watches them, and recovers what they leave behind."""
