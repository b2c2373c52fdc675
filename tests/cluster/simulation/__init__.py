"""A cluster of simulated processes, disks, network and registry around the real `Replica`: one seed is one history."""
