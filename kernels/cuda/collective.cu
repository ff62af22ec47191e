// Sums of gradients over the GPUs of a run, through NCCL, on the backend's own stream.
//
// Every wait has a deadline: the host polls the communicator's asynchronous error and an event, and
// gives the communicator up when a peer is late or lost, so that no rank waits for ever.
#include "kernels/cuda/cuda.cuh"

#if SPARDA_HAVE_NCCL

#include <nccl.h>
#include <time.h>

static_assert(sizeof(ncclUniqueId) == SP_COMM_ID_BYTES,
              "the size of NCCL's id is part of kernels.h");

struct sp_cuda_comm {
    ncclComm_t comm;
    cudaEvent_t done;
    int rank, size;
    double deadline_s;
};

static sp_status nccl_error(ncclResult_t r, const char *what, const sp_cuda_comm *m) {
    return sp_error(SP_ENVIRONMENT, "NCCL: %s failed on rank %d of %d: %s (%s)", what, m->rank,
                    m->size, ncclGetErrorString(r), ncclGetLastError(m->comm));
}

static void nap(void) {
    struct timespec t = {0, 20000};
    nanosleep(&t, NULL);
}

// Waits until `finished` says so; NCCL's errors and the deadline end the wait.
template <class Finished>
static sp_status wait_for(sp_cuda_comm *m, const char *what, Finished finished) {
    double start = sp_now();
    for (;;) {
        ncclResult_t state = ncclSuccess, asked = ncclCommGetAsyncError(m->comm, &state);
        if (asked != ncclSuccess) state = asked;
        if (state != ncclSuccess && state != ncclInProgress) return nccl_error(state, what, m);
        if (finished(state)) return SP_OK;
        if (sp_now() - start > m->deadline_s)
            return sp_error(
                SP_ENVIRONMENT,
                "rank %d waited %.0f s for the other %d ranks in %s; one of them is lost "
                "or stuck; see its log/rank-N.log in the run folder",
                m->rank, m->deadline_s, m->size - 1, what);
        nap();
    }
}

extern "C" sp_status sp_cuda_comm_id(sp_backend *be, char id[SP_COMM_ID_BYTES]) {
    (void)be;
    ncclResult_t r = ncclGetUniqueId((ncclUniqueId *)id);
    if (r == ncclSuccess) return SP_OK;
    return sp_error(SP_ENVIRONMENT,
                    "NCCL cannot make a communicator id: %s; look at NCCL_SOCKET_IFNAME and the "
                    "network interfaces of this host",
                    ncclGetErrorString(r));
}

extern "C" void sp_cuda_comm_leave(sp_backend *be, bool abandon) {
    sp_cuda *c = (sp_cuda *)be;
    sp_cuda_comm *m = c->comm;
    if (!m) return;
    if (m->comm) {
        if (abandon)
            ncclCommAbort(m->comm); // unblocks kernels that wait for a lost peer
        else
            ncclCommDestroy(m->comm);
    }
    if (m->done) cudaEventDestroy(m->done);
    free(m);
    c->comm = NULL;
}

extern "C" sp_status sp_cuda_comm_join(sp_backend *be, const char id[SP_COMM_ID_BYTES], int rank,
                                       int size, double deadline_s) {
    sp_cuda *c = (sp_cuda *)be;
    SP_TRY(sp_alloc(&c->comm, 1, sizeof *c->comm, "the communicator"));
    sp_cuda_comm *m = c->comm;
    m->rank = rank;
    m->size = size;
    m->deadline_s = deadline_s;
    CUDA_TRY(cudaEventCreateWithFlags(&m->done, cudaEventDisableTiming));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId unique;
    memcpy(&unique, id, sizeof unique);
    ncclResult_t r = ncclCommInitRankConfig(&m->comm, size, unique, rank, &config);
    sp_status st = r == ncclSuccess || r == ncclInProgress
                       ? wait_for(m, "joining the communicator",
                                  [](ncclResult_t state) { return state == ncclSuccess; })
                       : nccl_error(r, "ncclCommInitRankConfig", m);
    if (st != SP_OK) sp_cuda_comm_leave(be, true);
    return st;
}

extern "C" sp_status sp_cuda_all_reduce(sp_tensor t) {
    sp_cuda *c = sp_cuda_of(t);
    sp_cuda_comm *m = c->comm;
    ncclResult_t r = ncclAllReduce(t.data, t.data, (size_t)(t.rows * t.cols), ncclFloat, ncclSum,
                                   m->comm, c->stream);
    sp_status st = SP_OK;
    if (r == ncclInProgress)
        st = wait_for(m, "starting the sum of the gradients",
                      [](ncclResult_t state) { return state == ncclSuccess; });
    else if (r != ncclSuccess)
        st = nccl_error(r, "ncclAllReduce", m);
    if (st == SP_OK) {
        CUDA_TRY(cudaEventRecord(m->done, c->stream));
        cudaEvent_t done = m->done;
        st = wait_for(m, "the sum of the gradients",
                      [done](ncclResult_t) { return cudaEventQuery(done) != cudaErrorNotReady; });
    }
    if (st != SP_OK) {
        sp_cuda_comm_leave(&c->base, true);
        return st;
    }
    CUDA_TRY(cudaEventQuery(m->done));
    return SP_OK;
}

#else // without NCCL the ranks sum their gradients through the host (train/ranks.c)

extern "C" void sp_cuda_comm_leave(sp_backend *be, bool abandon) {
    (void)be, (void)abandon;
}

#endif
