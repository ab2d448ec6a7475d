/* D3D kernels: the C interface.
 *
 * One struct of arguments per operation, one function per operation and device. No torch, no Python, no
 * exceptions. Pointers are raw, strides count elements (bytes where said), offsets are 64 bits wide. A null
 * pointer is an absent optional. Unless a stride is given, arrays are dense and row-major.
 *
 *   d3d_<op>_cpu(args, num_threads)   returns when the work is done; may be called from several threads at
 *                                     once. The only memory it allocates is scratch of the calling thread,
 *                                     kept for the next call.
 *   d3d_<op>_cuda(args, stream)       queues the work on a cudaStream_t and returns. It never allocates,
 *                                     synchronises or touches another stream, so it can be captured.
 *                                     Workspace comes from the caller, aligned to 16 bytes, as much as
 *                                     d3d_<op>_workspace_bytes says for the same arguments on the same device;
 *                                     its contents do not matter. Counters (`arrivals`) must be zero before
 *                                     their first use; a launch leaves them zero. Launches that may overlap
 *                                     share neither.
 *
 * Inputs are never written. Every element of every output is. A function returns D3D_OK or a d3d_error.
 *
 * B requests, R rows, N tree nodes, L draft positions, K candidates, E outcomes, V vocabulary, M KV moves,
 * Q rows of a pass, S columns of a mask.
 */
#ifndef D3D_H
#define D3D_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define D3D_VERSION "0.1.0"
#define D3D_MAX_VOCAB (1 << 22) /* 2^22 fixed-point weights of 2^40 fit in 63 bits */
#define D3D_CUDA_MAX_CANDIDATES 256
#define D3D_CUDA_MAX_NODES 1024 /* of a tree that is built: the search lives in shared memory */

typedef enum d3d_error {
  D3D_OK = 0,
  D3D_ERROR_ARGUMENT =
      1,                /* a size is negative, a needed pointer is null, or V is not in [1, D3D_MAX_VOCAB) */
  D3D_ERROR_DTYPE = 2,  /* unknown d3d_dtype */
  D3D_ERROR_MEMORY = 3, /* no memory for CPU scratch */
  D3D_ERROR_LAUNCH = 4  /* the CUDA runtime refused the launch; see d3d_cuda_error_string */
} d3d_error;

typedef enum d3d_dtype { D3D_F32 = 0, D3D_BF16 = 1, D3D_F16 = 2, D3D_F64 = 3 } d3d_dtype;

/* Bits of the per-row status outputs. */
enum {
  D3D_STATUS_NO_FINITE_LOGIT = 1, /* the row offered nothing to choose from: token 0 */
  D3D_STATUS_BAD_TREE = 2,        /* a parent that is not an earlier node, or a row outside the logits */
  D3D_STATUS_BAD_TOKEN = 4        /* a drafted id outside [0, V); it is never accepted */
};

/* Sampling parameters of B requests. Below a temperature of 1e-5 (or NaN) a request is greedy. Off are:
 * top_k <= 0 or >= V, top_p >= 1 or NaN, min_p <= 0 or NaN. */
typedef struct d3d_sampling {
  int64_t num_requests;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seed; /* 64 bits, any sign */
} d3d_sampling;

/* B lists of token ids; ids outside [0, V) are padding. */
typedef struct d3d_id_lists {
  const int64_t* ids; /* [B, length], null: no list */
  int64_t stride;     /* from one request's list to the next; 0: all share one */
  int64_t length;
} d3d_id_lists;

/* Adjustments of B requests' logits, applied in the order of the fields. */
typedef struct d3d_penalties {
  d3d_id_lists prompt;
  d3d_id_lists output;
  const float* repetition; /* l > 0 ? l / r : l * r, ids of prompt or output */
  const float* frequency;  /* l -= f * (occurrences in output) */
  const float* presence;   /* l -= p, ids of output */
  d3d_id_lists bias;       /* l += value; values of a repeated id add up in list order */
  const float* bias_values;
  int64_t bias_values_stride;
  const int32_t* allowed_bits; /* bit v % 32 of word v / 32 clear: -inf */
  int64_t allowed_stride;      /* words from one request to the next */
} d3d_penalties;

/* token_ids[r] = argmax_v of filter(l_v / T) + G(seed, positions[r], v). */
typedef struct d3d_sample_args {
  const void* logits; /* [R, V], last dimension dense */
  int32_t dtype;
  int32_t vocab;
  int64_t num_rows;
  int64_t row_stride;
  d3d_sampling sampling;
  const int64_t* positions;   /* [R] of the token to be sampled */
  const int32_t* request_ids; /* [R], null: row r is request r. Outside [0, B): as a row without a logit */
  const d3d_penalties* penalties; /* host pointer */
  int64_t* token_ids;             /* [R] out */
  int32_t* status;                /* [R] out */
  void* workspace;                /* CUDA: d3d_sample_workspace_bytes */
} d3d_sample_args;

/* The K largest perturbed logits of each drafted position, best first. */
typedef struct d3d_draft_args {
  const void* logits; /* [R, L, V] */
  int32_t dtype;
  int32_t vocab;
  int64_t num_rows;
  int64_t num_positions; /* L */
  int64_t row_stride;
  int64_t position_stride;
  int32_t num_candidates; /* K; on CUDA at most D3D_CUDA_MAX_CANDIDATES */
  int32_t mask_token_id;  /* never a candidate; -1: none */
  float beta;             /* temper of the scores */
  d3d_sampling sampling;
  const int64_t* positions; /* [R] of the first drafted token */
  const int32_t* request_ids;
  const d3d_penalties* penalties;
  int64_t* token_ids; /* [R, L, K] out, -1 where fewer than K survive */
  float* log_probs;   /* [R, L, K] out, log q of the filtered, tempered row */
  float* scores;      /* [R, L, K] out */
  void* workspace;    /* CUDA: d3d_draft_candidates_workspace_bytes */
} d3d_draft_args;

/* The N most probable prefixes and the E next ones. With outcome_index the candidates are [B, num_branches,
 * L, K] and request b reads branch outcome_index[b]; outside [0, num_branches), a miss, its tree is the root
 * alone. */
typedef struct d3d_build_tree_args {
  int64_t num_requests;
  int64_t num_positions;              /* L */
  int32_t num_candidates;             /* K */
  int32_t num_nodes;                  /* N >= 1 */
  int32_t num_outcomes;               /* E */
  int32_t max_depth;                  /* deeper entries are outcomes only */
  const int64_t* root_ids;            /* [B], negative: an empty lane */
  const int64_t* candidate_token_ids; /* [B, L, K], negative ends a list */
  const float* candidate_scores;      /* [B, L, K], not finite ends a list */
  d3d_id_lists stop;                  /* nothing grows below these, and they are no outcomes */
  int64_t* token_ids;                 /* [B, N] out */
  int32_t* parents;                   /* [B, N] out */
  int32_t* depths;                    /* [B, N] out */
  int32_t* node_counts;               /* [B] out */
  int32_t* mask_bits;                 /* [B, N, ceil(N / 32)] out */
  int32_t* outcome_parents;           /* [B, E] out */
  int64_t* outcome_token_ids;         /* [B, E] out */
  float* outcome_scores;              /* [B, E] out */
  const int32_t* outcome_index;       /* [B], null: candidates are [B, L, K] */
  int64_t num_branches;               /* of a request's candidates; read with outcome_index only */
  const int64_t* root_positions;      /* [B], null: 0; what positions count from */
  int64_t* positions;                 /* [B, N] out, null: not wanted; root position + depth */
  int32_t* first_child;               /* [B, N] out, null: not wanted; the lowest child, -1: a leaf */
  int32_t* next_sibling;              /* [B, N] out, with first_child; the next higher, -1: the last */
} d3d_build_tree_args;

/* draft_candidates of [B, L, V], then build_tree over them. Of the tree, num_requests, num_positions,
 * num_candidates and the candidates are those of the draft and not read, and outcome_index is not used. */
typedef struct d3d_draft_tree_args {
  d3d_draft_args draft; /* positions are those of the roots; request_ids is not used. Outputs are optional */
  d3d_build_tree_args tree;
  void* workspace;    /* CUDA: d3d_draft_tree_workspace_bytes; the draft's is not used */
  uint32_t* arrivals; /* CUDA: [B] counters, see above */
} d3d_draft_tree_args;

/* The path of the target's own samples through the draft tree. */
typedef struct d3d_verify_tree_args {
  const void* logits; /* [B, N, V], or [R, V] with row_starts */
  int32_t dtype;
  int32_t vocab;
  int64_t num_requests;
  int32_t num_nodes;      /* N */
  int64_t request_stride; /* of [B, N, V]; unused with row_starts */
  int64_t row_stride;
  const int32_t* row_starts; /* [B]: node i of request b is row row_starts[b] + i */
  int64_t num_rows;          /* R; used with row_starts */
  const int64_t* token_ids;
  const int32_t* parents;
  const int32_t* node_counts;
  d3d_sampling sampling;
  const int64_t* root_positions; /* [B] */
  const d3d_penalties* penalties;
  int32_t* accepted_nodes;          /* [B, N] out, root excluded, -1 padded */
  int32_t* num_accepted;            /* [B] out */
  int64_t* bonus_ids;               /* [B] out */
  int32_t* status;                  /* [B] out */
  int32_t num_outcomes;             /* E */
  const int32_t* outcome_parents;   /* [B, E] */
  const int64_t* outcome_token_ids; /* [B, E] */
  int32_t* outcome_index; /* [B] out, null: not wanted; the first outcome that came true, -1: none */
  void* workspace;        /* CUDA: d3d_verify_tree_workspace_bytes */
  uint32_t* arrivals;     /* CUDA: [B] counters, see above */
} d3d_verify_tree_args;

typedef enum d3d_chain_rule { D3D_RULE_COUPLED = 0, D3D_RULE_RATIO = 1, D3D_RULE_BLOCK = 2 } d3d_chain_rule;

typedef enum d3d_draft_kind {
  D3D_DRAFT_CERTAIN = 0,      /* q is a point mass at each draft; draft_rows is not read */
  D3D_DRAFT_LOGITS = 1,       /* q: the request's temperature and filters over these, no penalties */
  D3D_DRAFT_PROBABILITIES = 2 /* q: these, each taken into [0, 1] (NaN: 0), over their sum */
} d3d_draft_kind;

/* The verdict on one drafted continuation a request; d3d/chain.h has the rules. */
typedef struct d3d_verify_chain_args {
  const void* target_logits; /* [B, n + 1, V], last dimension dense */
  int32_t dtype;
  int32_t vocab;
  int64_t num_requests;
  int32_t num_drafts; /* n */
  int32_t rule;       /* d3d_chain_rule */
  int64_t request_stride;
  int64_t row_stride;
  const int64_t* draft_ids; /* [B, n]; the first id outside [0, V) ends a chain */
  int64_t draft_ids_stride;
  const void* draft_rows; /* [B, n, V], last dimension dense; not read under the coupled rule */
  int32_t draft_dtype;
  int32_t draft_kind; /* d3d_draft_kind */
  int64_t draft_request_stride;
  int64_t draft_row_stride;
  d3d_sampling sampling;
  const int64_t* positions;       /* [B] of the first drafted token */
  const d3d_penalties* penalties; /* of the target's rows; row j sees the first j drafts as output */
  int32_t* accepted_nodes;        /* [B, n + 1] out: 1, 2, .. num_accepted, then -1 */
  int32_t* num_accepted;          /* [B] out */
  int64_t* bonus_ids;             /* [B] out */
  int32_t* status;                /* [B] out */
  void* workspace;                /* CUDA: d3d_verify_chain_workspace_bytes */
} d3d_verify_chain_args;

/* The first outcome (last accepted node, bonus token) that came true, or -1; and what was drafted behind it.
 */
typedef struct d3d_select_outcome_args {
  int64_t num_requests;
  int32_t num_nodes;
  int32_t num_outcomes;
  const int32_t* accepted_nodes;
  const int32_t* num_accepted;
  const int64_t* bonus_ids;
  const int32_t* outcome_parents;
  const int64_t* outcome_token_ids;
  int32_t* index;               /* [B] out */
  int64_t num_positions;        /* L */
  int32_t num_candidates;       /* K */
  const int64_t* candidate_ids; /* [B, E, L, K], null: no candidates */
  const float* candidate_log_probs;
  const float* candidate_scores;
  int64_t* draft_ids; /* [B, L, K] out, with candidates; -1, -inf, -inf on a miss */
  float* draft_log_probs;
  float* draft_scores;
} d3d_select_outcome_args;

/* The drafter's pass ahead of a verdict: Q = N - 1 + E * block_size rows a request, the tree without its
 * root, then E branches of a bonus token and its masks. Row i stands in logical slot root_positions[b] + 1 +
 * i and sees every slot up to the root's, and of the Q new ones those whose bit it has. A row that does not
 * exist has token 0, position 0, slot -1 and no bits. */
typedef struct d3d_frontier_args {
  int64_t num_requests;
  int32_t num_nodes;    /* N >= 1 */
  int32_t num_outcomes; /* E */
  int32_t block_size;   /* rows of a branch, >= 1 */
  int64_t mask_token_id;
  const int64_t* token_ids; /* [B, N] */
  const int32_t* depths;
  const int32_t* node_counts;     /* [B] */
  const int32_t* mask_bits;       /* [B, N, ceil(N / 32)] */
  const int32_t* outcome_parents; /* [B, E] */
  const int64_t* outcome_token_ids;
  const int64_t* root_positions; /* [B] */
  const void* page_table;        /* [B, P]; a negative page is none */
  int32_t page_id_bytes;         /* 4 or 8 */
  int64_t page_table_stride;     /* from one request to the next */
  int64_t num_pages;             /* P */
  int32_t page_size;
  int64_t* row_token_ids;   /* [B, Q] out */
  int64_t* row_positions;   /* [B, Q] out */
  int64_t* row_slots;       /* [B, Q] out */
  int32_t* row_mask_bits;   /* [B, Q, ceil(Q / 32)] out */
  int64_t* draft_positions; /* [B, E] out, of the first token drafted in a branch; -1: no branch */
  int32_t* request_ids;     /* [B, E] out, -1: no branch */
} d3d_frontier_args;

/* Bit masks of Q new rows, written out over the columns [context | new]. */
typedef struct d3d_dense_mask_args {
  int64_t num_requests;
  int64_t num_rows; /* Q */
  int64_t num_words;
  const int32_t* mask_bits;       /* [B, Q, num_words] */
  const int64_t* context_lengths; /* [B]: columns that every row sees; bit j is column context + j */
  int64_t num_columns;            /* S */
  int32_t element_bytes;          /* 1, 2, 4 or 8 */
  uint64_t visible;               /* the element's bits where a row sees a column, */
  uint64_t hidden;                /* and where it does not */
  void* mask;                     /* [B, Q, S] out */
} d3d_dense_mask_args;

/* The same as bits, for FlashInfer: request b has counts[b] rows of context_lengths[b] + counts[b] columns,
 * bit row * columns + column of the bytes from byte_starts[b] on, the lowest bit first. */
typedef struct d3d_packed_mask_args {
  int64_t num_requests;
  int64_t num_rows; /* Q */
  int64_t num_words;
  const int32_t* mask_bits;
  const int64_t* context_lengths; /* [B], clamped to [0, max_context] */
  const int32_t* counts;          /* [B], clamped to [0, Q]; null: Q */
  int64_t max_context;
  uint8_t* bits; /* out, num_requests * ceil(Q * (max_context + Q) / 8) bytes; 0 behind the last request */
  int32_t* byte_starts; /* [B + 1] out */
} d3d_packed_mask_args;

/* One tensor of a paged cache; strides in bytes. The row of a slot is num_heads pieces of head_bytes. */
typedef struct d3d_kv_buffer {
  void* data;
  int64_t page_stride;
  int64_t offset_stride;
  int64_t head_stride;
  int64_t num_heads;
  int64_t head_bytes;
} d3d_kv_buffer;

/* Copies rows in list order, in place. No entry may write a row that a later one reads; requests move
 * disjoint rows. Slots outside [0, num_pages * page_size) on either side skip the entry. */
typedef struct d3d_move_kv_args {
  const d3d_kv_buffer* buffers; /* on CUDA in the device's memory */
  int64_t num_buffers;
  int64_t num_pages;
  int64_t page_size;
  int64_t num_requests;
  int64_t num_moves;      /* M */
  const int64_t* sources; /* [B, M] */
  const int64_t* targets; /* [B, M] */
  const int32_t* counts;  /* [B] */
} d3d_move_kv_args;

int d3d_sample_cpu(const d3d_sample_args* args, int num_threads);
int d3d_draft_candidates_cpu(const d3d_draft_args* args, int num_threads);
int d3d_build_tree_cpu(const d3d_build_tree_args* args, int num_threads);
int d3d_draft_tree_cpu(const d3d_draft_tree_args* args, int num_threads);
int d3d_verify_tree_cpu(const d3d_verify_tree_args* args, int num_threads);
int d3d_verify_chain_cpu(const d3d_verify_chain_args* args, int num_threads);
int d3d_select_outcome_cpu(const d3d_select_outcome_args* args, int num_threads);
int d3d_frontier_cpu(const d3d_frontier_args* args, int num_threads);
int d3d_dense_mask_cpu(const d3d_dense_mask_args* args, int num_threads);
int d3d_packed_mask_cpu(const d3d_packed_mask_args* args, int num_threads);
int d3d_move_kv_cpu(const d3d_move_kv_args* args, int num_threads);

int64_t d3d_sample_workspace_bytes(const d3d_sample_args* args);
int64_t d3d_draft_candidates_workspace_bytes(const d3d_draft_args* args);
int64_t d3d_draft_tree_workspace_bytes(const d3d_draft_tree_args* args);
int64_t d3d_verify_tree_workspace_bytes(const d3d_verify_tree_args* args);
int64_t d3d_verify_chain_workspace_bytes(const d3d_verify_chain_args* args);

int d3d_sample_cuda(const d3d_sample_args* args, void* stream);
int d3d_draft_candidates_cuda(const d3d_draft_args* args, void* stream);
int d3d_build_tree_cuda(const d3d_build_tree_args* args, void* stream);
int d3d_draft_tree_cuda(const d3d_draft_tree_args* args, void* stream);
int d3d_verify_tree_cuda(const d3d_verify_tree_args* args, void* stream);
int d3d_verify_chain_cuda(const d3d_verify_chain_args* args, void* stream);
int d3d_select_outcome_cuda(const d3d_select_outcome_args* args, void* stream);
int d3d_frontier_cuda(const d3d_frontier_args* args, void* stream);
int d3d_dense_mask_cuda(const d3d_dense_mask_args* args, void* stream);
int d3d_packed_mask_cuda(const d3d_packed_mask_args* args, void* stream);
int d3d_move_kv_cuda(const d3d_move_kv_args* args, void* stream);

const char* d3d_error_string(int error);
const char* d3d_cuda_error_string(void); /* of the last D3D_ERROR_LAUNCH in this thread */
const char* d3d_simd_level(void);        /* "avx512", "avx2" or "baseline"; D3D_SIMD=... forces a lower one */

#ifdef __cplusplus
}
#endif
#endif
