// The training loop (training.md 8, design 3.1 to 3.5).
//
// sp_train_command is collective over the ranks: each calls it with the same arguments.
#ifndef SPARDA_TRAIN_H
#define SPARDA_TRAIN_H

#include "common/status.h"

sp_status sp_train_command(int argc, char **argv); // argv[0] is "train"
sp_status sp_bench_command(int argc, char **argv); // argv[0] is "bench"

#endif
