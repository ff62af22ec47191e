// Checkpoints that others wrote (h5_faults.h): never a crash; no file but this one is opened; since
// a mark covers everything that is read, what is accepted is what was saved.
// seed: tests/fuzz/seeds/h5-state.bin
// seed: tests/fuzz/seeds/h5-links.bin
#include "checkpoints/checkpoints.h"
#include "tests/fuzz/h5_faults.h"

enum { LAYERS = 2, KV = 1, HEAD = 2, HIDDEN = 3, SIZE = KV * HEAD * HIDDEN };

static sp_train_state state(bool moments) {
    static float values[3][(LAYERS + 1) * SIZE];
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < (LAYERS + 1) * SIZE; i++) values[k][i] = (float)(100 * k + i) / 7;
    sp_train_state s = {
        .weights = {.layers = LAYERS, .rows = KV * HEAD, .cols = HIDDEN, .w = values[0]},
        .exp_avg = moments ? values[1] : NULL,
        .exp_avg_sq = moments ? values[2] : NULL,
        .step = 7,
        .config = "steps: 7\n",
        .data_identity = "0123",
        .cpu_blas = "openblas",
        .base_name = "tiny",
        .heads = {2, KV, HEAD},
        .hidden = HIDDEN,
        .program = "fuzz"};
    memset(s.base_config_sha256, 'a', 64);
    return s;
}

static const names state_names = {
    {"/@format", "/@version", "/@end_mark", "training@step", "training@seed",
     "training@data_identity", "training@kl_target_align_pooling", "training@mask_future_blocks",
     "base@layers", "base@hidden", "base@kv_heads", "base@head_dim", "base@config_sha256",
     "sparse_config@topk", "sparse_config@topk_from", "config@xxh3"},
    {"training", "base", "sparse_config", "weights", "exp_avg", "exp_avg_sq", "config",
     "weights/model.layers.0.self_attn.q_future_proj.weight"},
    16,
    8};

static char *saved[2]; // without and with moments
static int64_t saved_bytes[2];

static void save_both(void) {
    for (int i = 0; i < 2; i++) {
        const sp_train_state s = state(i);
        require(sp_state_save(other, &s) == SP_OK &&
                    sp_read_file(other, 1 << 20, &saved[i], &saved_bytes[i]) == SP_OK,
                "a state cannot be saved");
    }
}

static void write_own(const char *bytes, int64_t n) {
    FILE *f = fopen(own, "we");
    require(f && fwrite(bytes, 1, (size_t)n, f) == (size_t)n && fclose(f) == 0, "cannot write");
}

static void try_state(void) {
    unsigned moments = take(2);
    sp_train_state want = state(moments), got;
    write_own(saved[moments], saved_bytes[moments]);
    hid_t file = H5Fopen(own, H5F_ACC_RDWR, H5P_DEFAULT);
    require(file >= 0, "a saved state cannot be opened");
    bool spoilt = spoil(file, &state_names);
    require(H5Fclose(file) >= 0, "cannot close");
    begin_reading();
    sp_status st = sp_state_load(own, &got);
    require(st == SP_OK || st == SP_BAD_INPUT, "an unexpected status");
    require(st == SP_OK || spoilt, "a right state is refused");
    if (st == SP_OK) {
        require(got.weights.layers == LAYERS && got.weights.rows == KV * HEAD &&
                    got.weights.cols == HIDDEN && got.step == 7 && got.hidden == HIDDEN &&
                    strcmp(got.config, want.config) == 0 &&
                    memcmp(got.weights.w, want.weights.w, (LAYERS + 1) * SIZE * sizeof(float)) == 0,
                "an altered state is accepted");
        require(!got.exp_avg == !want.exp_avg &&
                    (!got.exp_avg ||
                     memcmp(got.exp_avg, want.exp_avg, LAYERS * SIZE * sizeof(float)) == 0),
                "altered moments are accepted");
        sp_train_state_free(&got);
    }
    end_reading();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    sp_h5_begin();
    if (!own[0]) { // the other file is a right state
        name_files();
        save_both();
    }
    begin(data, bytes);
    try_state();
    sp_h5_end();
    sp_error_clear();
    return 0;
}
