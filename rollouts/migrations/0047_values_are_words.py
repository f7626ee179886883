"""Values of states are told by their words, as everywhere else; no column changes."""

import environments.types
import rollouts.pools
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0046_session_records'),
    ]

    operations = [
        migrations.AlterField(
            model_name='attempt',
            name='state',
            field=models.CharField(choices=[('open', 'open'), ('started', 'started'), ('closed', 'closed')], default='open', max_length=16),
        ),
        migrations.AlterField(
            model_name='batch',
            name='state',
            field=models.CharField(choices=[('formed', 'formed'), ('delivered', 'delivered'), ('trained', 'trained')], default='formed', max_length=16),
        ),
        migrations.AlterField(
            model_name='checkpoint',
            name='state',
            field=models.CharField(choices=[('complete', 'complete'), ('deleted', 'deleted')], default='complete', max_length=16),
        ),
        migrations.AlterField(
            model_name='datasetmember',
            name='split',
            field=models.CharField(choices=[('train', 'train'), ('eval', 'eval')], default=environments.types.Split['TRAIN'], max_length=8),
        ),
        migrations.AlterField(
            model_name='environmentclient',
            name='state',
            field=models.CharField(choices=[('connected', 'connected'), ('lapsed', 'lapsed'), ('left', 'left')], default='connected', max_length=16),
        ),
        migrations.AlterField(
            model_name='evaluation',
            name='state',
            field=models.CharField(choices=[('playing', 'playing'), ('done', 'done'), ('expired', 'expired')], default='playing', max_length=16),
        ),
        migrations.AlterField(
            model_name='export',
            name='state',
            field=models.CharField(choices=[('queued', 'queued'), ('writing', 'writing'), ('done', 'done'), ('failed', 'failed'), ('cancelled', 'cancelled'), ('deleted', 'deleted')], default='queued', max_length=16),
        ),
        migrations.AlterField(
            model_name='knownproblem',
            name='pool',
            field=models.CharField(choices=[('new', 'new'), ('normal', 'normal'), ('hard', 'hard'), ('easy', 'easy')], default=rollouts.pools.Pool['NEW'], max_length=8),
        ),
        migrations.AlterField(
            model_name='policyversion',
            name='state',
            field=models.CharField(choices=[('written', 'written'), ('live', 'live'), ('superseded', 'superseded')], default='written', max_length=16),
        ),
        migrations.AlterField(
            model_name='replica',
            name='state',
            field=models.CharField(choices=[('starting', 'starting'), ('ready', 'ready'), ('suspect', 'suspect'), ('stopping', 'stopping'), ('exited', 'exited'), ('lost', 'lost')], default='starting', max_length=16),
        ),
        migrations.AlterField(
            model_name='rollout',
            name='error_kind',
            field=models.CharField(blank=True, choices=[('policy', 'policy'), ('environment', 'environment'), ('reward', 'reward'), ('tool', 'tool'), ('budget', 'budget')], max_length=16),
        ),
        migrations.AlterField(
            model_name='rollout',
            name='stop_reason',
            field=models.CharField(choices=[('stop', 'stop'), ('length', 'length'), ('turns', 'turns'), ('error', 'error')], max_length=8),
        ),
        migrations.AlterField(
            model_name='run',
            name='state',
            field=models.CharField(choices=[('pending', 'pending'), ('starting', 'starting'), ('running', 'running'), ('finishing', 'finishing'), ('stopping', 'stopping'), ('finished', 'finished'), ('stopped', 'stopped'), ('failed', 'failed')], default='pending', max_length=16),
        ),
        migrations.AlterField(
            model_name='rundataset',
            name='split',
            field=models.CharField(choices=[('train', 'train'), ('eval', 'eval')], default=environments.types.Split['TRAIN'], max_length=8),
        ),
        migrations.AlterField(
            model_name='scoredgroup',
            name='state',
            field=models.CharField(choices=[('playing', 'playing'), ('held', 'held'), ('ready', 'ready'), ('batched', 'batched'), ('trained', 'trained'), ('evaluated', 'evaluated'), ('stale', 'stale'), ('filtered', 'filtered'), ('failed', 'failed'), ('rejected', 'rejected'), ('surplus', 'surplus')], max_length=16),
        ),
        migrations.AlterField(
            model_name='trial',
            name='state',
            field=models.CharField(choices=[('waiting', 'waiting'), ('playing', 'playing'), ('finished', 'finished'), ('failed', 'failed')], default='waiting', max_length=16),
        ),
    ]
