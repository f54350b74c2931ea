"""The rank engine: runs functions in sets of processes; knows nothing of gradients.

pool         all crews of a session: jobs in, outcomes out, deadlines
task         one job on one crew, and how long it may take
pauses       imports within a job, which are no time of the job's
starvation   what ranks had of cores; waiting for one is no time of the job's either
quiet        ranks that wait for each other for ever
crew         W ranks with one process group
rank         one rank of this machine, and what a crew wants of any
seats        ranks that never sat, and why
hosts        ranks that other processes of a given group hold; agent: their side
wire         messages between those
messages     what travels between the pool and its ranks
failures     what keeps the engine itself from working

forkserver   one server process that has imported torch and the target
preload      what runs inside that server before the first fork
environment  its variables
signals      by which a process is asked where it is
worker       the life of one rank process
leftovers    what a job changed in its rank and did not put back
journal      what a rank told before it ended
parent       a process that dies with its parent
folder       the private folder of a session, and what is left of killed ones
"""
