/* A step of a whole model in one call: its instructions, one after the other, by a team of threads.
 *
 * It reads a token of each sequence, or several. What multiplies matrices takes every token for a row of its own; what
 * goes through time takes the tokens of a sequence in their order, and leaves a state behind each.
 *
 * The step reads every weight once, and is bound by that. So the team starts once a step, shares are fixed, and threads
 * wait for each other only where one needs what another has written: about four times a layer.
 */
#include "decode_program.h"
#include "decode_attention.h"
#include "decode_experts.h"
#include "decode_latent.h"
#include "decode_linear.h"
#include "decode_memory.h"
#include "decode_pointwise.h"
#include "decode_recurrent.h"
#include "decode_turning.h"

static int has_vnni(void) {
#if defined(__AVX512F__)
    return __builtin_cpu_supports("avx512vnni") != 0;
#else
    return 0;
#endif
}

static void run_instruction(const worker *me, const instruction *i) {
#define RUN(KIND, name) \
    case KIND: run_##name(me, &i->name); break;
    switch (i->kind) { EACH_INSTRUCTION(RUN) }
}

static void run_program(void *context, int64_t thread, int64_t n_threads) {
    decoding *step = context;
    worker me = {step, thread, n_threads};
    for (int64_t i = 0; i < step->n_instructions; i++) {
        run_instruction(&me, step->program + i);
        if (step->program[i].wait) barrier_wait(&step->meeting, n_threads);
    }
}

void EXPORT_PLAIN(decode_step)(const int64_t *program, int64_t n_instructions, const int64_t *buffers, float *scratch,
                               int64_t shared_width, int64_t local_width, const int64_t *rows, const int64_t *places,
                               int64_t n_rows, const int64_t *begins, int64_t n_sequences, int64_t batch,
                               const int64_t *tokens, const uint8_t *restarts, const int64_t *state, float *logits,
                               int64_t n_logits, int64_t n_threads, int64_t prefetch, int64_t ahead, int64_t vnni,
                               int64_t alike) {
    decoding step = {.program = (const instruction *)program,
                     .buffers = (const buffer *)buffers,
                     .scratch = scratch,
                     .n_instructions = n_instructions,
                     .shared_width = shared_width,
                     .local_width = local_width,
                     .n_rows = n_rows,
                     .rows = rows,
                     .places = places,
                     .n_sequences = n_sequences,
                     .begins = begins,
                     .batch = batch,
                     .tokens = tokens,
                     .restarts = restarts,
                     .state = state,
                     .logits = logits,
                     .n_logits = n_logits,
                     .prefetch = prefetch,
                     .ahead = ahead,
                     .vnni = vnni && has_vnni(),
                     .alike = alike != 0};
    parallel_team(n_threads, run_program, &step);
}
