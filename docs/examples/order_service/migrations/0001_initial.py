from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012 # as Django writes it
        migrations.CreateModel(
            name="OrderRow",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("customer", models.TextField()),
                ("cents", models.BigIntegerField()),
                ("cancelled", models.BooleanField()),
            ],
            options={"db_table": "orders", "managed": False},
        ),
        migrations.CreateModel(
            name="Shipment",
            fields=[
                ("order", models.TextField(primary_key=True, serialize=False)),
                ("customer", models.TextField()),
            ],
        ),
    ]
