// Forecast projections: copies on a backend.
#include "model/forecast.h"

#include "common/util.h"

#include <stdlib.h>

sp_status sp_forecast_upload(sp_backend *be, const sp_forecast *f, sp_forecast_device *out) {
    *out = (sp_forecast_device){.layers = f->layers};
    sp_status st = sp_alloc(&out->w, f->layers + 1, sizeof *out->w, "the Forecast tensors");
    for (int64_t l = 0; st == SP_OK && l <= f->layers; l++) {
        st = sp_tensor_alloc(be, sp_backend_storage(be), f->rows, f->cols, "a Forecast matrix",
                             &out->w[l]);
        if (st == SP_OK) st = sp_upload(out->w[l], sp_forecast_matrix(f, l));
    }
    if (st != SP_OK) {
        sp_forecast_device_free(out);
        return sp_error_trace_at(__FILE__, __LINE__, st, "sp_forecast_upload");
    }
    return SP_OK;
}

void sp_forecast_device_free(sp_forecast_device *f) {
    for (int64_t l = 0; f->w && l <= f->layers; l++) sp_tensor_free(&f->w[l]);
    free(f->w);
    *f = (sp_forecast_device){0};
}
