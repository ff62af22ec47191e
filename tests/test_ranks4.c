// ctest: ranks=4 timeout=120
// The tests of test_ranks.c on four ranks: shares that do not divide, order of three additions.
#include "test_ranks.c"
