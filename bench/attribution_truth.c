/* What XNNPACK made of each graph, taken from the runtime itself: gcc -shared -fPIC -O1 -o truth.so attribution_truth.c
 *
 * Preload it into a process that runs a .pte with executorch 1.5.1 on x86-64 Linux and name a file in
 * OPSCOPE_TRUTH. libexecutorch_backend_xnnpack calls its own exported functions through the PLT, so the functions
 * below are called in place of XNNPACK's. For each runtime that a delegate creates, one line of JSON is appended:
 * the graph as the delegate defined it, the graph after each pass over it, and the operators that run, in order.
 *
 * Nodes are followed by a mark in xnn_node.num_params, which only XNNPACK's sparse inference reads; the delegate
 * does not ask for it. A node that XNNPACK moves keeps its mark, one that it defines anew has none.
 *
 * The structs are those of src/xnnpack/subgraph.h of XNNPACK at commit 92a7ad501b (July 2026), which executorch 1.5.1
 * is built from. They are not part of its API: what they say is compared with exported functions and with itself
 * before and after, and nothing is recorded but the reason when they disagree.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKEND "libexecutorch_backend_xnnpack"
#define MAX_RANK 6
#define MAX_INPUTS 5
#define MAX_OUTPUTS 4
#define MAX_NODE_TYPE 64
#define MAX_OBJECTS 5
#define MARK ((size_t)0x6f707363 << 32)
#define OUT_OF_MEMORY 6
#define OPERATOR_COUNT 0
#define OPERATOR_NAME 1

struct shape {
  size_t rank;
  size_t dims[MAX_RANK];
};

struct value {
  uint32_t id, type, datatype;
  uint64_t quantisation[6];
  struct shape shape;
  size_t size;
  uint32_t allocation, flags;
  void *data;
  uint32_t producer, first_consumer;
  uint64_t rest[9];
};

struct node {
  uint32_t type, operation, id;
  uint64_t parameters[14];
  float activation[2];
  uint32_t inputs[MAX_INPUTS], num_inputs, outputs[MAX_OUTPUTS], num_outputs;
  uint32_t flags, layout_flags, cluster_leader;
  size_t mark, num_zeroes;
  void *functions[3];
};

struct subgraph {
  uint32_t external_value_ids, reserved_values, num_values;
  struct value *values;
  uint32_t reserved_nodes, num_nodes;
  struct node *nodes;
};

struct operation {
  uint32_t type, id;
  void *objects[MAX_OBJECTS];
  uint64_t middle[14];
  uint32_t num_inputs, inputs[MAX_INPUTS], num_outputs, outputs[MAX_OUTPUTS];
  uint64_t rest[4];
};

struct runtime {
  uint64_t flags;
  struct operation *operations;
  size_t num_operations;
};

_Static_assert(sizeof(struct value) == 224, "xnn_value");
_Static_assert(sizeof(struct node) == 232, "xnn_node");
_Static_assert(sizeof(struct subgraph) == 40, "xnn_subgraph");
_Static_assert(sizeof(struct operation) == 240, "xnn_operator_data");

static FILE *file;
static int depth;
static const char *refusal;

static int find_backend(struct dl_phdr_info *library, size_t size, void *found) {
  (void)size;
  if (strstr(library->dlpi_name, BACKEND) == NULL) return 0;
  *(const char **)found = library->dlpi_name;
  return 1;
}

/* XNNPACK's own function of that name. The library is loaded locally, so RTLD_NEXT does not reach it. */
static void *original(const char *name) {
  static void *library;
  if (library == NULL) {
    const char *path = NULL;
    dl_iterate_phdr(find_backend, &path);
    if (path != NULL) library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  }
  void *found = library == NULL ? NULL : dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "attribution_truth: no function %s in %s\n", name, BACKEND);
    abort();
  }
  return found;
}

static bool recording(void) { return depth == 1 && file != NULL && refusal == NULL; }

static bool valid_ids(const uint32_t *ids, uint32_t count, uint32_t most, uint32_t values) {
  if (count > most) return false;
  for (uint32_t i = 0; i < count; i++)
    if (ids[i] >= values) return false;
  return true;
}

/* Compare what the structs say with what exported functions say, and with themselves. */
static const char *disagreement(const struct subgraph *graph) {
  uint32_t (*count_nodes)(const void *) = original("xnn_subgraph_get_num_nodes");
  uint32_t (*count_values)(const void *) = original("xnn_subgraph_get_num_values");
  uint32_t (*flags_of)(const void *, uint32_t) = original("xnn_subgraph_get_value_flags");
  int (*datatype_of)(const void *, uint32_t) = original("xnn_subgraph_get_value_datatype");
  if (count_nodes(graph) != graph->num_nodes) return "number of nodes";
  if (count_values(graph) != graph->num_values) return "number of values";
  for (uint32_t i = 0; i < graph->num_values; i++) {
    const struct value *value = &graph->values[i];
    bool cleared = value->type == 0 && value->datatype == 0;
    if (!cleared && value->id != i) return "ids of values";
    if (value->flags != flags_of(graph, i)) return "flags of values";
    if ((int)value->datatype != datatype_of(graph, i)) return "data types of values";
    if (value->type > 1 || value->shape.rank > MAX_RANK) return "shapes of values";
  }
  for (uint32_t i = 0; i < graph->num_nodes; i++) {
    const struct node *node = &graph->nodes[i];
    if (node->type == 0) continue;
    if (node->id != i) return "ids of nodes";
    if (node->type > MAX_NODE_TYPE || node->functions[0] == NULL) return "types of nodes";
    if (!valid_ids(node->inputs, node->num_inputs, MAX_INPUTS, graph->num_values)) return "inputs of nodes";
    if (!valid_ids(node->outputs, node->num_outputs, MAX_OUTPUTS, graph->num_values)) return "outputs of nodes";
  }
  return NULL;
}

static void write_ids(const uint32_t *ids, uint32_t count) {
  fputc('[', file);
  for (uint32_t i = 0; i < count; i++) fprintf(file, i ? ",%u" : "%u", ids[i]);
  fputc(']', file);
}

static void write_node(const struct node *node) {
  long mark = (node->mark & MARK) == MARK ? (long)(uint32_t)node->mark : -1;
  fprintf(file, "{\"type\":%u,\"operation\":%u,\"mark\":%ld,\"inputs\":", node->type, node->operation, mark);
  write_ids(node->inputs, node->num_inputs);
  fputs(",\"outputs\":", file);
  write_ids(node->outputs, node->num_outputs);
  fputc('}', file);
}

static void write_value(const struct value *value) {
  fprintf(file, "{\"datatype\":%u,\"flags\":%u,\"static\":%s,\"dims\":[", value->datatype, value->flags,
          value->data == NULL ? "false" : "true");
  for (size_t i = 0; i < value->shape.rank; i++) fprintf(file, i ? ",%zu" : "%zu", value->shape.dims[i]);
  fputs("]}", file);
}

/* The graph as it stands after a pass, when the structs can be trusted. */
static void write_graph(const char *pass, const struct subgraph *graph) {
  refusal = disagreement(graph);
  if (refusal != NULL) return;
  fprintf(file, "{\"pass\":\"%s\",\"nodes\":[", pass);
  for (uint32_t i = 0; i < graph->num_nodes; i++) {
    if (i) fputc(',', file);
    write_node(&graph->nodes[i]);
  }
  fputs("],\"values\":[", file);
  for (uint32_t i = 0; i < graph->num_values; i++) {
    if (i) fputc(',', file);
    write_value(&graph->values[i]);
  }
  fputs("]}", file);
}

static void write_operations(const struct runtime *runtime, uint32_t num_nodes) {
  int (*info)(const void *, int, size_t, void *, size_t *) = original("xnn_get_runtime_profiling_info");
  size_t count = 0, needed = 0;
  if (runtime->num_operations != num_nodes) refusal = "number of operators";
  if (refusal == NULL && info(runtime, OPERATOR_COUNT, sizeof count, &count, &needed) != 0) refusal = "profiling";
  if (refusal == NULL && count > 0 && info(runtime, OPERATOR_NAME, 0, NULL, &needed) != OUT_OF_MEMORY)
    refusal = "operator names";
  if (refusal != NULL) return;
  char *names = malloc(needed + 1), *name = names;
  if (count > 0) info(runtime, OPERATOR_NAME, needed, names, &needed);
  size_t running = 0;
  for (size_t i = 0; i < runtime->num_operations; i++) {
    const struct operation *operation = &runtime->operations[i];
    if (operation->objects[0] == NULL) continue;
    if (operation->id != i) refusal = "ids of operators";
    fprintf(file, "%s{\"node\":%zu,\"name\":\"%s\",\"inputs\":", running++ ? "," : "", i, name);
    write_ids(operation->inputs, operation->num_inputs > MAX_INPUTS ? 0 : operation->num_inputs);
    fputs(",\"outputs\":", file);
    write_ids(operation->outputs, operation->num_outputs > MAX_OUTPUTS ? 0 : operation->num_outputs);
    fputc('}', file);
    name += strlen(name) + 1;
  }
  if (running != count) refusal = "operators that run";
  free(names);
}

static void begin(struct subgraph *graph) {
  const char *path = getenv("OPSCOPE_TRUTH");
  refusal = NULL;
  file = path == NULL ? NULL : fopen(path, "a");
  if (file == NULL) return;
  for (uint32_t i = 0; i < graph->num_nodes; i++) graph->nodes[i].mark = MARK | i;
  fputs("{\"graphs\":[", file);
  write_graph("defined", graph);
}

static void end(const struct subgraph *graph, struct runtime *const *runtime, int status) {
  if (file == NULL) return;
  fputs("],\"operators\":[", file);
  if (refusal == NULL && status == 0) write_operations(*runtime, graph->num_nodes);
  fprintf(file, "],\"status\":%d,\"refusal\":\"%s\"}\n", status, refusal == NULL ? "" : refusal);
  fclose(file);
  file = NULL;
}

/* Runtimes that XNNPACK creates while it makes a lookup table are inside another and are not recorded. */
int xnn_create_runtime_v4(struct subgraph *graph, void *cache, void *workspace, void *threads, uint32_t flags,
                          struct runtime **runtime) {
  int (*create)(struct subgraph *, void *, void *, void *, uint32_t, struct runtime **) = original(__func__);
  depth++;
  if (depth == 1) begin(graph);
  int status = create(graph, cache, workspace, threads, flags, runtime);
  if (depth == 1) end(graph, runtime, status);
  depth--;
  return status;
}

static void after(const char *pass, const struct subgraph *graph) {
  if (!recording()) return;
  fputc(',', file);
  write_graph(pass, graph);
}

#define PASS(name)                                               \
  int name(struct subgraph *graph, uint32_t flags) {             \
    int (*run)(struct subgraph *, uint32_t) = original(__func__); \
    int status = run(graph, flags);                              \
    after(#name + strlen("xnn_subgraph_"), graph);               \
    return status;                                               \
  }

/* Some of them return nothing or take no flags; on x86-64 and arm64 the rest of the call is the same. */
PASS(xnn_subgraph_rewrite_ssa)
PASS(xnn_subgraph_fusion)
PASS(xnn_subgraph_fuse_unary_quantized_into_lut)
PASS(xnn_subgraph_optimize_common_subgraphs)
PASS(xnn_subgraph_rewrite_dequant_bmm)
PASS(xnn_subgraph_optimize_packed_lhs)
PASS(xnn_subgraph_fallback_from_fp16_to_fp32)
PASS(xnn_subgraph_fallback_from_bf16_to_fp32)
PASS(xnn_subgraph_rewrite_for_row_sum)
