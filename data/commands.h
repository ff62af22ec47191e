// The commands of `sparda data`, one function each; argv[0] is the command's name. Internal to
// data/.
#ifndef SPARDA_DATA_COMMANDS_H
#define SPARDA_DATA_COMMANDS_H

#include "data/dataset.h"

sp_status sp_data_synth(int argc, char **argv);
sp_status sp_data_import(int argc, char **argv, sp_data_assemble assemble);
sp_status sp_data_retokenize(int argc, char **argv, sp_data_assemble assemble);
sp_status sp_data_verify(int argc, char **argv);
sp_status sp_data_info(int argc, char **argv);

// vocab_size of the config.json of a model folder.
sp_status sp_base_vocab(const char *base, int64_t *vocab);

#endif
