"""The dashboard: pages of an AdminSite that has registered ``JobRecordAdmin``.

``bulk`` alone is imported without ``django.contrib.admin``: it holds the task that workers run.
"""
