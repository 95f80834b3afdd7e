from datetime import timedelta
