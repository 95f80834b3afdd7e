"""What an application calls: tasks, jobs, queues, workflows, gathers, and the path of new jobs."""
