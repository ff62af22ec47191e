// Study: checks importance_sm90 against a naive double-precision kernel and times it.
#include "kernels/cuda/importance_sm90.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CK(x)                                                                                      \
    do {                                                                                           \
        cudaError_t ck_ = (x);                                                                     \
        if (ck_ != cudaSuccess) {                                                                  \
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(ck_));             \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

using namespace importance_sm90;
typedef CUresult (*Encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
static Encode encode;

static CUtensorMap make_map(void *p, int64_t rows, int64_t cols, int64_t ld, int box_rows) {
    CUtensorMap m;
    cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, strides[1] = {(cuuint64_t)ld * 2};
    cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, ones[2] = {1, 1};
    CUresult r = encode(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, dims, strides, box, ones,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) {
        printf("tensor map: %d\n", r);
        exit(3);
    }
    return m;
}

__global__ void fill(__nv_bfloat16 *p, int64_t n, uint64_t seed, float sigma) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        float u = ((z & 0xffffffff) + 0.5f) * 0x1p-32f, v = (z >> 32) * 0x1p-32f;
        p[i] = __float2bfloat16(sigma * sqrtf(-2 * logf(u)) * cospif(2 * v));
    }
}

// one block per (row of a list, kv head): double precision, straight from the definition
__global__ void naive(const __nv_bfloat16 *q, int64_t q_ld, const __nv_bfloat16 *c, int64_t c_ld,
                      Params p, int D, int rho, bool mean, const int *rows, double *P,
                      double *out) {
    int row = rows[blockIdx.x], kv = blockIdx.y, G = p.q_heads / p.kv_heads;
    int vis = visible(p, row);
    double *Pr = P + ((int64_t)blockIdx.x * p.kv_heads + kv) * p.n;
    __shared__ double red[256];
    for (int j = threadIdx.x; j < p.n; j += 256) Pr[j] = 0;
    for (int a = 0; a < G; a++) {
        const __nv_bfloat16 *qa = q + row * q_ld + (kv * G + a) * D;
        double mx = -1e300, sum = 0;
        for (int pass = 0; pass < 3; pass++) {
            double local = pass == 0 ? -1e300 : 0;
            for (int j = threadIdx.x; j < vis; j += 256) {
                double z = 0;
                for (int x = 0; x < D; x++)
                    z += (double)__bfloat162float(qa[x]) *
                         (double)__bfloat162float(c[j * c_ld + kv * D + x]);
                z *= p.scale_log2;
                if (pass == 0) local = fmax(local, z);
                if (pass == 1) local += exp2(z - mx);
                if (pass == 2) Pr[j] += exp2(z - mx) / sum;
            }
            if (pass == 2) break;
            red[threadIdx.x] = local;
            __syncthreads();
            for (int s = 128; s; s /= 2) {
                if (threadIdx.x < s)
                    red[threadIdx.x] = pass ? red[threadIdx.x] + red[threadIdx.x + s]
                                            : fmax(red[threadIdx.x], red[threadIdx.x + s]);
                __syncthreads();
            }
            (pass ? sum : mx) = red[0];
            __syncthreads();
        }
        __syncthreads();
    }
    for (int a = threadIdx.x; a < p.n_d; a += 256) {
        double v = 0;
        for (int j = rho == 1 ? a : a * rho - 1; j < (rho == 1 ? a + 1 : a * rho + rho); j++)
            if (j >= 0 && j < p.n) v = mean && rho > 1 ? v + Pr[j] / (rho + 1) : fmax(v, Pr[j]);
        out[((int64_t)blockIdx.x * p.kv_heads + kv) * p.n_d + a] = v;
    }
}

template <int D, int RHO, bool MEAN>
static void launch2(const CUtensorMap &qm, const CUtensorMap &cm, const Params &p) {
    auto k2 = importance_kernel<D, RHO, MEAN>;
    CK(cudaFuncSetAttribute(k2, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)Imp<D>::SMEM));
    int key_tiles = (p.n + Imp<D>::KEYS - 1) / Imp<D>::KEYS;
    dim3 g2((p.rows + Imp<D>::ROWS - 1) / Imp<D>::ROWS, (key_tiles + p.chunk - 1) / p.chunk,
            p.kv_heads);
    k2<<<g2, THREADS, Imp<D>::SMEM>>>(qm, cm, p);
    CK(cudaGetLastError());
}
template <int D>
static void launch1(const CUtensorMap &qm, const CUtensorMap &cm, const Params &p) {
    auto k1 = lse_kernel<D>;
    CK(cudaFuncSetAttribute(k1, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)Lse<D>::SMEM));
    dim3 g1((p.rows + Lse<D>::ROWS - 1) / Lse<D>::ROWS, p.q_heads);
    k1<<<g1, THREADS, Lse<D>::SMEM>>>(qm, cm, p);
    CK(cudaGetLastError());
}

template <int D, int RHO, bool MEAN>
static void run(int T, int Hq, int Hkv, int kernel_d, int stride_d, int i0, int R, bool time,
                int chunk, float sigma) {
    int St = stride_d / RHO, Kt = RHO == 1 ? kernel_d : 2 * St;
    int n = (T - Kt) / St + 1, n_d = (T - kernel_d) / stride_d + 1;
    int extent = RHO == 1 ? kernel_d - 1 : 0;
    int64_t q_ld = (int64_t)(Hq + 2 * Hkv) * D, c_ld = (int64_t)Hkv * D;
    __nv_bfloat16 *q, *c;
    float *lse, *out;
    CK(cudaMalloc(&q, 2 * q_ld * R));
    CK(cudaMalloc(&c, 2 * c_ld * n));
    CK(cudaMalloc(&lse, 4ull * Hq * R));
    CK(cudaMalloc(&out, 4ull * R * Hkv * n_d));
    fill<<<1024, 256>>>(q, q_ld * R, 1, sigma);
    fill<<<1024, 256>>>(c, c_ld * n, 2, 1.f);
    CK(cudaMemset(lse, 0xff, 4ull * Hq * R));
    Params p = {i0,
                R,
                n,
                St,
                extent,
                Hq,
                Hkv,
                1.4426950408889634f / sqrtf((float)D),
                lse,
                out,
                (int64_t)Hkv * n_d,
                n_d,
                chunk};
    CUtensorMap q64 = make_map(q, R, q_ld, q_ld, 64), c128 = make_map(c, n, c_ld, c_ld, 128);
    auto once = [&] {
        CK(cudaMemsetAsync(out, 0, 4ull * R * Hkv * n_d));
        launch1<D>(q64, c128, p);
        launch2<D, RHO, MEAN>(q64, c128, p);
    };
    once();
    CK(cudaDeviceSynchronize());
    std::vector<int> rows;
    for (int r : {0,   1,   2,   15,  16,  17,  31,   62,    63,     64,    65,   100,
                  127, 128, 129, 200, 255, 256, 1000, R / 2, R - 65, R - 2, R - 1})
        if (r >= 0 && r < R) rows.push_back(r);
    int *drows;
    double *P, *ref;
    CK(cudaMalloc(&drows, 4 * rows.size()));
    CK(cudaMemcpy(drows, rows.data(), 4 * rows.size(), cudaMemcpyHostToDevice));
    CK(cudaMalloc(&P, 8ull * rows.size() * Hkv * n));
    CK(cudaMalloc(&ref, 8ull * rows.size() * Hkv * n_d));
    naive<<<dim3(rows.size(), Hkv), 256>>>(q, q_ld, c, c_ld, p, D, RHO, MEAN, drows, P, ref);
    CK(cudaDeviceSynchronize());
    std::vector<double> href(rows.size() * Hkv * n_d);
    size_t cells = (size_t)Hkv * n_d;
    std::vector<float> hout(cells);
    CK(cudaMemcpy(href.data(), ref, 8 * href.size(), cudaMemcpyDeviceToHost));
    double num = 0, den = 0, worst = 0;
    for (size_t r = 0; r < rows.size(); r++) {
        CK(cudaMemcpy(hout.data(), out + (int64_t)rows[r] * Hkv * n_d, 4 * hout.size(),
                      cudaMemcpyDeviceToHost));
        double rn = 0, rd = 0;
        for (size_t x = 0; x < hout.size(); x++) {
            double e = hout[x] - href[r * hout.size() + x];
            rn += e * e, rd += href[r * hout.size() + x] * href[r * hout.size() + x];
        }
        num += rn, den += rd;
        double rel = sqrt(rn) / (sqrt(rd) + 1e-30);
        if (!(rel <= worst)) worst = rel;
    }
    printf("D%d rho%d %s T%d R%d i0=%d Hq%d Hkv%d: rel %.2e worst row %.2e %s\n", D, RHO,
           MEAN ? "mean" : "max", T, R, i0, Hq, Hkv, sqrt(num / den), worst,
           worst < 1e-4 ? "ok" : "WRONG");
    if (time) {
        cudaEvent_t e[3];
        for (auto &x : e) CK(cudaEventCreate(&x));
        std::vector<float> t1, t2;
        for (int i = 0; i < 7; i++) {
            CK(cudaMemsetAsync(out, 0, 4ull * R * Hkv * n_d));
            CK(cudaEventRecord(e[0]));
            launch1<D>(q64, c128, p);
            CK(cudaEventRecord(e[1]));
            launch2<D, RHO, MEAN>(q64, c128, p);
            CK(cudaEventRecord(e[2]));
            CK(cudaDeviceSynchronize());
            float a, b;
            CK(cudaEventElapsedTime(&a, e[0], e[1]));
            CK(cudaEventElapsedTime(&b, e[1], e[2]));
            if (i >= 2) t1.push_back(a), t2.push_back(b);
        }
        std::sort(t1.begin(), t1.end());
        std::sort(t2.begin(), t2.end());
        double pairs = 0;
        for (int r = 0; r < R; r++) {
            int64_t i = (int64_t)i0 + r;
            pairs += i < extent ? 0 : std::min<int64_t>(n, (i - extent) / St + 1);
        }
        double flop = 2.0 * D * Hq * pairs;
        printf("   pass 1 %.2f ms %.0f TFLOP/s   pass 2 (chunk %d) %.2f ms %.0f TFLOP/s   together "
               "%.0f\n",
               t1[2], flop / t1[2] * 1e-9, chunk, t2[2], flop / t2[2] * 1e-9,
               2 * flop / (t1[2] + t2[2]) * 1e-9);
    }
    cudaFree(q), cudaFree(c), cudaFree(lse), cudaFree(out), cudaFree(drows), cudaFree(P),
        cudaFree(ref);
}

int main() {
    cudaDriverEntryPointQueryResult qr;
    CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000,
                                        cudaEnableDefault, &qr));
    run<128, 16, false>(1000, 32, 2, 32, 16, 0, 1000, false, 8, 1.f);
    run<128, 16, false>(4096, 32, 2, 32, 16, 0, 4096, false, 8, 3.f);
    run<128, 16, false>(4096, 32, 2, 32, 16, 2048, 1024, false, 3, 1.f);
    run<128, 16, true>(3001, 8, 2, 32, 16, 0, 3001, false, 8, 1.f);
    run<64, 4, false>(1000, 8, 2, 8, 4, 0, 1000, false, 8, 1.f);
    run<64, 8, false>(777, 6, 2, 16, 8, 0, 777, false, 2, 1.f);
    run<64, 2, false>(777, 2, 2, 4, 2, 0, 777, false, 2, 1.f);
    run<64, 1, false>(1000, 8, 2, 8, 4, 0, 1000, false, 8, 1.f);
    run<128, 1, false>(20000, 32, 2, 32, 16, 0, 20000, false, 8, 1.f);
    for (int chunk : {16, 64})
        run<128, 16, false>(65536, 32, 2, 32, 16, 0, 65536, true, chunk, 1.f);
    run<128, 1, false>(131072, 32, 2, 32, 16, 0, 65536, true, 16, 1.f);
    return 0;
}
