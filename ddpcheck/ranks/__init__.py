"""The rank engine: runs functions in sets of processes; knows nothing of gradients.

forkserver   one server process that has imported torch and the target
preload      what runs inside that server before the first fork
worker       the life of one rank process
crew         W rank processes with one process group
pool         all crews of a session, jobs in, results out, deadlines
collectives  which collective a rank entered last
memory       tensors of one process, readable by the others
"""
