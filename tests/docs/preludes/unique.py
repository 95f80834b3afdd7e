from django_redisqueue import task
