// Records when LiteRT's Interpreter calls each operator, as a delegate that takes none.
//
// The wheels' Interpreter offers no profiler. Its public interface for delegates (`tflite/core/c/common.h`) gives one the
// context of each graph, in which the function that an operator is called by is exchanged for one that also looks at the
// clock, and a profiler can be put (`tflite/core/api/profiler.h`), to which XNNPACK tells how long its operators took.
// What is declared here is the same in tflite-runtime 2.14 and in ai-edge-litert 1.0 to 2.3, and ends where it differs.

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Context;
struct Delegate;

struct IntArray {
  int size;
  int data[1];
};

struct Node {
  IntArray *inputs, *outputs, *intermediates, *temporaries;
  void *user_data, *builtin_data;
  const void* custom_initial_data;
  int custom_initial_data_size;
  Delegate* delegate;
};

using Invoke = int (*)(Context*, Node*);

struct Registration {
  void *init, *free, *prepare;
  Invoke invoke;
  void* profiling_string;
  int32_t builtin_code;
  const char* custom_name;
};

struct Context {
  size_t tensors_size;
  int (*plan)(Context*, IntArray**);
  void *tensors, *impl, *resize_tensor, *report_error, *add_tensors;
  int (*node)(Context*, int, Node**, Registration**);
  void* replace_nodes;
  int recommended_num_threads;
  void *get_external_context, *set_external_context;
  bool allow_fp32_relax_to_fp16;
  void* profiler;
};

struct Delegate {
  void* data;
  int (*prepare)(Context*, Delegate*);
  void *copy_from, *copy_to, *free_handle;
  int64_t flags;
  void* builder;
};

constexpr int64_t kAllowsDynamicTensors = 1;
constexpr int kGeneral = 1, kOperator = 2, kDelegateCall = 4, kDelegateOperator = 8;
constexpr int32_t kNone = -1, kDelegateCode = 51;

struct Event {
  const char* tag;  // null for a built-in operator, and for a graph
  int32_t code;     // of a built-in operator
  int32_t type;
  int64_t start, duration;  // ns; start is 0 where it was not seen
  int64_t number;           // of the operator
  int64_t graph;
};

struct Graph {
  Context* context;
  int (*plan)(Context*, IntArray**);
  int (*node)(Context*, int, Node**, Registration**);
  int64_t last = kNone;  // place of the operator that was called last
  size_t call = 0;       // number of the event of its call
};

struct Operator {
  Invoke invoke;
  const char* name;
  int32_t code;
  int64_t number, place;
  size_t graph;
};

std::vector<Event> events;
std::vector<Graph> graphs;
std::unordered_map<const Node*, Operator> operators;
std::vector<size_t> running;  // graphs whose operators are being called, the innermost last
std::set<std::string> names;  // that XNNPACK told, which are gone after its call

int64_t now() {
#ifdef __APPLE__
  return static_cast<int64_t>(clock_gettime_nsec_np(CLOCK_UPTIME_RAW));
#else
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
#endif
}

// The virtual functions are in the order of tflite::Profiler.
class Profiler {
 public:
  virtual ~Profiler() = default;
  virtual uint32_t begin(const char*, int, int64_t, int64_t) { return 0; }
  virtual void end(uint32_t, int64_t, int64_t) {}
  virtual void end(uint32_t) {}
  virtual void add(const char* tag, int type, uint64_t elapsed, int64_t number, int64_t) {
    if (type != kDelegateOperator || running.empty()) return;
    const int64_t ns = static_cast<int64_t>(elapsed) * 1000;
    const char* name = names.emplace(tag == nullptr ? "" : tag).first->c_str();
    events.push_back({name, kNone, type, 0, ns, number, static_cast<int64_t>(running.back())});
  }
  virtual void add_data(const char*, int, const void*) {}
};

Profiler profiler;

// The call of a graph is seen by those of its operators: from the first one's start to the last one's end.
void enter(Graph& graph, const Operator& called, int64_t start) {
  if (called.place <= graph.last || graph.last == kNone) {
    graph.call = events.size();
    events.push_back({nullptr, kNone, kGeneral, start, 0, 0, static_cast<int64_t>(called.graph)});
  }
  graph.last = called.place;
}

int invoke(Context* context, Node* node) {
  const Operator& called = operators.at(node);
  Graph& graph = graphs[called.graph];
  const int64_t start = now();
  enter(graph, called, start);
  const size_t own = events.size();
  const bool delegated = called.code == kDelegateCode;
  const int64_t number = static_cast<int64_t>(called.graph);
  if (!delegated) events.push_back({called.name, called.code, kOperator, start, 0, called.number, number});
  running.push_back(called.graph);
  const int status = called.invoke(context, node);
  const int64_t duration = now() - start;
  running.pop_back();
  if (!delegated) {
    events[own].duration = duration;
  } else if (events.size() == own) {  // it told of no operator
    events.push_back({called.name, kNone, kDelegateCall, start, duration, called.number, number});
  }
  events[graph.call].duration = start + duration - events[graph.call].start;
  return status;
}

int prepare(Context* context, Delegate*) {
  context->profiler = &profiler;
  graphs.push_back({context, context->plan, context->node});
  return 0;
}

Delegate delegate = {nullptr, prepare, nullptr, nullptr, nullptr, kAllowsDynamicTensors, nullptr};

}  // namespace

extern "C" {

// What the Interpreter is given, once; it has to be asked before any other delegate.
void* opscope_delegate() { return &delegate; }

// Exchanges the functions of all operators that the graphs call; returns the number of graphs, or a status below 0.
int opscope_watch() {
  for (size_t at = 0; at < graphs.size(); ++at) {
    Graph& graph = graphs[at];
    IntArray* plan = nullptr;
    if (graph.plan(graph.context, &plan) != 0) return -1;
    for (int place = 0; place < plan->size; ++place) {
      Node* node = nullptr;
      Registration* found = nullptr;
      if (graph.node(graph.context, plan->data[place], &node, &found) != 0) return -1;
      if (found->invoke == nullptr || found->invoke == invoke) continue;
      operators[node] = {found->invoke, found->custom_name, found->builtin_code, plan->data[place], place, at};
      found->invoke = invoke;
    }
  }
  return static_cast<int>(graphs.size());
}

void opscope_forget() {
  events.clear();
  for (auto& graph : graphs) graph.last = kNone;
}

size_t opscope_events(const Event** found) {
  *found = events.data();
  return events.size();
}
}
