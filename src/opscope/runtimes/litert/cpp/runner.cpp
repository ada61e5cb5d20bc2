// Runs one .tflite once in its own process, against LiteRT's library as the wheel has it.
//
// The wheel has no headers. What is declared here is `litert/c` of the versions that opscope.runtimes.litert.installed
// knows, as opscope.runtimes.litert.c_api reads it; opscope judges whether the events fit. CPU features are switched off
// from outside, before this program starts.

#include "runner.h"

namespace {

const Flags& own_flags() {
  static const Flags flags = {
      {"model_path", "the program (.tflite)"},
      {"library", "LiteRT's library; default libLiteRt.so"},
      {"delegate", "xnnpack, or none for LiteRT's own kernels; default xnnpack"},
      {"signatures", "numbers of the signatures to call over and over in this order, separated by commas; default 0"},
      {"input_sizes", "sizes of each input, as 1x8, or - for those of the file, separated by commas; default: the file's"},
      {"input_file", "the inputs' raw bytes are in NAME-0.bin, NAME-1.bin, ...; default: zeros"},
      {"caches", "outputs that take the place of the input of their name, separated by commas; default: none"},
      {"trace_path", "where to write the events of each call; default: none, and nothing is traced"},
      {"describe", "1: only tell the signatures, with the names of their inputs and outputs"},
  };
  return flags;
}

// ---- the C API

constexpr int kCpu = 1, kRead = 0, kWrite = 1, kMostEvents = 1 << 20;
constexpr size_t kTensorTypeBytes = 256, kElementTypeBytes = 4, kMostDimensions = 8;

struct Memory {
  size_t total, in_use, own;
};

struct Event {
  const char* tag;
  int type;
  uint64_t start, duration;
  Memory before, after;
  uint64_t metadata1, metadata2;
  int source;
};

struct Layout {
  unsigned rank;  // the lowest seven bits are the number of dimensions
  int32_t dimensions[kMostDimensions];
  uint32_t strides[kMostDimensions];

  std::vector<int64_t> sizes() const {
    return {dimensions, dimensions + std::min<size_t>(rank & 0x7f, kMostDimensions)};
  }
};

const char* meaning(int status) {
  switch (status) {
    case 1: return "an argument is invalid";
    case 2: return "out of memory";
    case 3: return "a runtime failure";
    case 5: return "unsupported";
    case 6: return "not found";
    default: return "unknown";
  }
}

void check(int status, const std::string& function) {
  if (status == 0) return;
  fail("LiteRT rejected the model: " + function + " returned " + std::to_string(status) + " (" + meaning(status) + ")");
}

using Handle = void*;

// Functions of the library by their names; arguments have to be of the types that C has there.
class Library {
 public:
  explicit Library(const std::string& path) : library_(load_library(path.c_str())) {}

  template <typename... Arguments>
  void call(const std::string& function, Arguments... arguments) const {
    check(found<int (*)(Arguments...)>(function)(arguments...), function);
  }

  template <typename... Arguments>
  Handle made(const std::string& function, Arguments... arguments) const {
    Handle result = nullptr;
    call(function, arguments..., &result);
    return result;
  }

  template <typename... Arguments>
  std::string told(const std::string& function, Arguments... arguments) const {
    const char* result = nullptr;
    call(function, arguments..., &result);
    return result == nullptr ? "" : result;
  }

  template <typename Function>
  Function found(const std::string& function) const {
    void* symbol = dlsym(library_, function.c_str());
    if (symbol == nullptr) fail("LiteRT's library has no function " + function);
    return reinterpret_cast<Function>(symbol);
  }

 private:
  void* library_;
};

void left_alone(void*) {}

// A signature: names in the order of the runtime.
struct Signature {
  Handle handle;
  std::string name;
  Names inputs, outputs;
};

class Model {
 public:
  Model(const Library& library, const std::string& path)
      : library_(library), environment_(library.made("LiteRtCreateEnvironment", 0, static_cast<void*>(nullptr))),
        model_(library.made("LiteRtCreateModelFromFile", environment_, path.c_str())) {
    size_t count = 0;
    library.call("LiteRtGetNumModelSignatures", model_, &count);
    for (size_t i = 0; i < count; ++i) {
      const Handle handle = library.made("LiteRtGetModelSignature", model_, i);
      const std::string name = library.told("LiteRtGetSignatureKey", handle);
      signatures_.push_back({handle, name, names(handle, "Input"), names(handle, "Output")});
    }
  }

  Handle environment() const { return environment_; }
  Handle handle() const { return model_; }
  const std::vector<Signature>& signatures() const { return signatures_; }

 private:
  Names names(Handle signature, const std::string& side) const {
    size_t count = 0;
    library_.call("LiteRtGetNumSignature" + side + "s", signature, &count);
    Names found;
    for (size_t i = 0; i < count; ++i) found.push_back(library_.told("LiteRtGetSignature" + side + "Name", signature, i));
    return found;
  }

  const Library& library_;
  Handle environment_, model_;
  std::vector<Signature> signatures_;
};

class CompiledModel {
 public:
  CompiledModel(const Library& library, const Model& model, const Flags& flags, bool profiled)
      : library_(library), model_(model) {
    const Handle options = library.made("LiteRtCreateOptions");
    library.call("LiteRtSetOptionsHardwareAccelerators", options, kCpu);
    static const char kProfiling[] = "enable_profiling = true\n";
    if (profiled) add(options, "runtime_options_string", kProfiling);
    const std::string delegate = text(flags, "delegate");
    if (!delegate.empty() && delegate != "xnnpack" && delegate != "none") usage("--delegate does not know " + delegate);
    cpu_ = "num_threads = " + std::to_string(number(flags, "cpu_threads", 1)) +
        "\nkernel_mode = " + (delegate == "none" ? "2" : "0") + "\n";
    add(options, "xnnpack", cpu_.c_str());
    compiled_ = library.made("LiteRtCreateCompiledModel", model.environment(), model.handle(), options);
    if (profiled) profiler_ = library.made("LiteRtCompiledModelGetProfiler", compiled_);
    run_ = library.found<int (*)(Handle, size_t, size_t, Handle*, size_t, Handle*)>("LiteRtRunCompiledModel");
  }

  CompiledModel(const CompiledModel&) = delete;

  // Gives inputs other sizes; those of the outputs follow from them.
  std::vector<Layout> resize(size_t number, const std::vector<std::vector<int>>& asked) const {
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i].empty()) continue;
      library_.call("LiteRtCompiledModelResizeInputTensor", compiled_, number, i, asked[i].data(), asked[i].size());
    }
    std::vector<Layout> layouts(model_.signatures()[number].outputs.size());
    library_.call("LiteRtGetCompiledModelOutputTensorLayouts", compiled_, number, layouts.size(), layouts.data(), true);
    return layouts;
  }

  // A buffer for one input or output; `sizes` are those that differ from the file's.
  Handle buffer(size_t number, const std::string& side, size_t at, const std::vector<int64_t>& sizes) const {
    const Handle needs =
        library_.made("LiteRtGetCompiledModel" + side + "BufferRequirements", compiled_, number, at);
    const Handle tensor =
        library_.made("LiteRtGetSignature" + side + "TensorByIndex", model_.signatures()[number].handle, at);
    alignas(16) uint8_t kind[kTensorTypeBytes] = {};
    library_.call("LiteRtGetRankedTensorType", tensor, static_cast<void*>(kind));
    if (!sizes.empty()) {
      Layout layout{};
      layout.rank = static_cast<unsigned>(std::min(sizes.size(), kMostDimensions));
      std::copy_n(sizes.begin(), layout.rank, layout.dimensions);
      memcpy(kind + kElementTypeBytes, &layout, sizeof layout);
    }
    return library_.made("LiteRtCreateManagedTensorBufferFromRequirements", model_.environment(),
        static_cast<void*>(kind), needs);
  }

  int run(size_t number, std::vector<Handle>& inputs, std::vector<Handle>& outputs) const {
    return run_(compiled_, number, inputs.size(), inputs.data(), outputs.size(), outputs.data());
  }

  size_t size(Handle buffer) const {
    size_t bytes = 0;
    library_.call("LiteRtGetTensorBufferPackedSize", buffer, &bytes);
    return bytes;
  }

  void fill(Handle buffer, const std::string& file) const {
    const Locked locked(library_, buffer, kWrite);
    if (file.empty()) {
      memset(locked.place, 0, locked.size);
    } else {
      read_exactly(file, static_cast<uint8_t*>(locked.place), locked.size);
    }
  }

  void write(Handle buffer, const std::string& file) const {
    const Locked locked(library_, buffer, kRead);
    write_file(file, locked.place, locked.size);
  }

  // Forgets all events and records new ones.
  void profile() const {
    library_.call("LiteRtResetProfiler", profiler_);
    library_.call("LiteRtStartProfiler", profiler_);
  }

  std::vector<Event> events() const {
    int count = 0;
    library_.call("LiteRtGetNumProfilerEvents", profiler_, &count);
    if (count < 0 || count > kMostEvents) fail("LiteRT's profiler reports " + std::to_string(count) + " events");
    std::vector<Event> rows(count);
    library_.call("LiteRtGetProfilerEvents", profiler_, count, rows.data());
    return rows;
  }

 private:
  struct Locked {
    Locked(const Library& library, Handle buffer, int mode) : library_(library), buffer_(buffer) {
      library.call("LiteRtGetTensorBufferPackedSize", buffer, &size);
      library.call("LiteRtLockTensorBuffer", buffer, &place, mode);
    }
    ~Locked() { library_.found<int (*)(Handle)>("LiteRtUnlockTensorBuffer")(buffer_); }
    Locked(const Locked&) = delete;

    void* place = nullptr;
    size_t size = 0;

   private:
    const Library& library_;
    Handle buffer_;
  };

  void add(Handle options, const char* name, const char* words) const {
    void* content = const_cast<char*>(words);
    const Handle option = library_.made("LiteRtCreateOpaqueOptions", name, content, &left_alone);
    library_.call("LiteRtAddOpaqueOptions", options, option);
  }

  const Library& library_;
  const Model& model_;
  std::string cpu_;  // the runtime keeps a pointer to it
  Handle compiled_ = nullptr, profiler_ = nullptr;
  int (*run_)(Handle, size_t, size_t, Handle*, size_t, Handle*) = nullptr;
};

// ---- the calls

// A signature that is called, with its buffers.
struct Called {
  size_t number;
  std::vector<Handle> inputs, outputs;
  std::vector<Layout> resized;
};

std::string event_json(const Event& event) {
  return "[" + json(std::string(event.tag == nullptr ? "" : event.tag)) + "," + json(int64_t{event.type}) + "," +
      std::to_string(event.start) + "," + std::to_string(event.duration) + "," + std::to_string(event.metadata1) + "," +
      std::to_string(event.metadata2) + "," + json(int64_t{event.source}) + "]";
}

// Signatures that are called in turn; every traced call is told with its events.
struct Calls {
  const CompiledModel& model;
  std::vector<Called>& called;
  const Turns<size_t>& turns;
  const bool traced;
  int status = 0;
  Names told = {};

  Called& at(size_t number) { return called[turns.place(number)]; }

  void prepare(size_t) {
    if (traced) model.profile();
  }

  void call(size_t number) {
    Called& one = at(number);
    status = model.run(one.number, one.inputs, one.outputs);
  }

  void keep(size_t number, int64_t before, int64_t after) {
    check(status, "LiteRtRunCompiledModel");
    if (!traced) return;
    Names rows;
    for (const Event& event : model.events()) rows.push_back(event_json(event));
    told.push_back("{\"wall_ns\":" + json(after - before) + ",\"start_ns\":" + json(before) +
        ",\"signature\":" + json(static_cast<int64_t>(at(number).number)) + ",\"events\":[" + joined(rows) + "]}");
  }
};

std::vector<size_t> wanted(const Flags& flags, const Model& model) {
  std::vector<size_t> found;
  for (const auto& word : list(flags, "signatures")) {
    const int64_t at = number(word, "signatures");
    if (at < 0 || static_cast<size_t>(at) >= model.signatures().size()) fail("the model has no signature " + word);
    found.push_back(static_cast<size_t>(at));
  }
  if (found.empty() && !model.signatures().empty()) found.push_back(0);
  if (found.empty()) fail("the model has no signature");
  return found;
}

// One signature with its buffers filled. `first` is the number of its first input among those of all signatures.
Called prepared(const CompiledModel& compiled, const Model& model, const Flags& flags, size_t number, size_t first) {
  const Signature& signature = model.signatures()[number];
  const Names words = list(flags, "input_sizes");
  std::vector<std::vector<int>> asked(signature.inputs.size());
  bool resized = false;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (first + i < words.size()) asked[i] = parse_sizes<int>(words[first + i], "input_sizes");
    resized = resized || !asked[i].empty();
  }
  Called called{number, {}, {}, resized ? compiled.resize(number, asked) : std::vector<Layout>()};
  const std::string base = text(flags, "input_file");
  for (size_t i = 0; i < asked.size(); ++i) {
    called.inputs.push_back(compiled.buffer(number, "Input", i, {asked[i].begin(), asked[i].end()}));
    compiled.fill(called.inputs.back(), base.empty() ? "" : numbered(base, first + i));
  }
  const Names caches = list(flags, "caches");
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const std::string& name = signature.outputs[i];
    const auto same = std::find(signature.inputs.begin(), signature.inputs.end(), name);
    const std::vector<int64_t> sizes = resized ? called.resized[i].sizes() : std::vector<int64_t>();
    called.outputs.push_back(compiled.buffer(number, "Output", i, sizes));
    // A cache is updated where it is, as LiteRT-LM has it: one buffer for what a call is given and leaves.
    if (same != signature.inputs.end() && std::find(caches.begin(), caches.end(), name) != caches.end()) {
      const Handle given = called.inputs[same - signature.inputs.begin()];
      if (compiled.size(given) == compiled.size(called.outputs.back())) called.outputs.back() = given;
    }
  }
  return called;
}

// Sizes of the outputs that the file does not tell; an empty list where it does.
std::string write_outputs(const CompiledModel& model, const std::vector<Called>& called, const std::string& base) {
  Names out;
  for (const auto& one : called) {
    for (size_t i = 0; i < one.outputs.size(); ++i) {
      if (!base.empty()) model.write(one.outputs[i], numbered(base, out.size()));
      out.push_back(one.resized.empty() ? "null" : json_array(one.resized[i].sizes()));
    }
  }
  return "[" + joined(out) + "]";
}

void describe(const Model& model, Answer& answer) {
  Names out;
  for (const auto& one : model.signatures()) {
    out.push_back("{\"name\":" + json(one.name) + ",\"inputs\":" + json_array(one.inputs) +
        ",\"outputs\":" + json_array(one.outputs) + "}");
  }
  answer.set("signatures", "[" + joined(out) + "]");
}

void run(const Flags& flags, const Library& library, int64_t spawned, Answer& answer) {
  const int64_t started = now();
  const std::string trace = text(flags, "trace_path");
  const Model model(library, text(flags, "model_path"));
  const CompiledModel compiled(library, model, flags, !trace.empty());
  const Turns<size_t> turns(wanted(flags, model));
  std::vector<Called> called;
  size_t inputs = 0;
  for (const size_t signature : turns.keys) {
    called.push_back(prepared(compiled, model, flags, signature, inputs));
    inputs += called.back().inputs.size();
  }
  const int64_t loaded = now();
  Calls calls{compiled, called, turns, !trace.empty()};
  measure(calls, flags, {spawned, started, loaded}, answer, [&] {
    const std::string content = "[" + joined(calls.told) + "]\n";
    if (!trace.empty()) write_file(trace, content.data(), content.size());
    answer.set("outputs", write_outputs(compiled, called, text(flags, "output_file")));
  });
}

void serve(const Flags& flags, int64_t spawned, Answer& answer) {
  if (number(flags, "probe", 0) != 0) return;
  const std::string path = text(flags, "library");
  const Library library(path.empty() ? "libLiteRt.so" : path);
  if (number(flags, "describe", 0) != 0) return describe(Model(library, text(flags, "model_path")), answer);
  run(flags, library, spawned, answer);
}

}  // namespace

int main(int count, char** words) { return answer_request(count, words, serve); }
