"""What an application calls (tasks, jobs, queues, workflows, gathers), and how it enqueues jobs."""
