"""A service of orders in Django, under gunicorn, with commands from requests and from Celery's tasks.

    orders.py     the domain: what may be done with an order, a table of orders, messages for the shipping department
    clients.py    the clients of the store, one for each process
    views.py      place, read, cancel and audit orders, and list those of a customer from the table
    tasks.py      places orders from a queue
    shipping.py   a process that consumes the messages

docs/FRAMEWORKS.md, "Django and gunicorn", says how it is run.
"""
