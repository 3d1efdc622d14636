"""Who waits: requests by flow, and fair sharing between the queues of siblings; pure."""
