// A rank that is stopped where only MPI itself could notice: `stuck_rank init R SECONDS` or
// `stuck_rank finalize R SECONDS` starts and ends as the program does, but rank R stops before it
// takes part in MPI's start or end. The others must end by that deadline. For test_stuck_mpi.sh.
#include "train/heartbeat.h"
#include "train/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *where, *who;

// Before MPI_Init only the launcher's variables know the rank.
static const char *own_rank(void) {
    const char *r = getenv("OMPI_COMM_WORLD_RANK");
    if (!r) r = getenv("PMI_RANK");
    return r ? r : "";
}

static void stop_here(const char *place) {
    if (strcmp(where, place) == 0 && strcmp(own_rank(), who) == 0) raise(SIGSTOP);
}

// MPI's profiling interface: these stand in front of the library's own.
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    stop_here("init");
    return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Finalize(void) {
    stop_here("finalize");
    return PMPI_Finalize();
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    where = argv[1];
    who = argv[2];
    const sp_ranks *ranks;
    double seconds = atof(argv[3]);
    sp_heartbeat_deadlines(seconds, seconds);
    if (sp_ranks_open(&ranks) != SP_OK) {
        fprintf(stderr, "%s\n", sp_error_text());
        return 1;
    }
    fprintf(stderr, "rank %d of %d is open\n", ranks->rank, ranks->size);
    sp_ranks_close();
    fprintf(stderr, "rank is closed\n");
    return 0;
}
