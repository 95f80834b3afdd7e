"""Jobs and receipts as rows that commit together with an application's own work."""
