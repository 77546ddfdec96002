//! A rank allocates the arena of its plan, to the byte. From the third step on, training allocates nothing: data, kernels and loop work in memory that was there before.

use forebay_compiler::pipeline::{self, CompileOptions, Models};
use forebay_dsl::model::Const;
use forebay_plan::verify::ALIGN;
use forebay_runtime::data::{Corpus, Dataset};
use forebay_runtime::exec::{ExecOptions, Executor};
use forebay_runtime::init;
use forebay_runtime::train::Trainer;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, with a counter of what all threads ask of it.
struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
/// Bytes of the blocks that are counted, and how many there were.
static WANTED: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let is_wanted = layout.size() as u64 == WANTED.load(Ordering::SeqCst);
        FOUND.fetch_add(is_wanted.into(), Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn models(name: &str, options: &CompileOptions) -> Models {
    let path = format!("{}/examples/models/{name}.moe", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a model that ships");
    let rows = options.overrides.iter().find(|(n, _)| n == "batch").map(|(_, v)| match v {
        Const::Int(n) => *n as u64 / u64::from(options.micro_batches),
        _ => unreachable!("batches are integers"),
    });
    let check = |training, rows, parts| {
        let accepted = forebay_dsl::load(&text, &options.check_options(training, rows, parts));
        accepted.unwrap_or_else(|d| panic!("{d:?}")).model
    };
    let parts = options.micro_batches;
    Models { train: check(true, rows, parts), eval: check(false, rows, parts), generate: check(false, Some(1), 1) }
}

// One test: the counter is the process's.
#[test]
fn steps_from_the_third_on_allocate_nothing() {
    let tiny = [("batch", 4), ("seq", 32), ("layers", 2), ("d", 32), ("f", 32), ("experts", 4)];
    let packed = [
        ("batch", 2),
        ("seq", 32),
        ("layers", 2),
        ("d", 64),
        ("heads", 4),
        ("kv_heads", 2),
        ("dh", 16),
        ("experts", 8),
        ("f", 32),
    ];
    let text: String =
        (0..4000).map(|i| format!("{} words of text{}", i * i % 97, if i % 7 == 0 { "\n\n" } else { " " })).collect();
    for (model, sizes, parts) in [("tiny-moe", &tiny[..], 2), ("packed-docs", &packed[..], 1)] {
        let overrides = sizes.iter().map(|(name, n)| (name.to_string(), Const::Int(*n))).collect();
        let options = CompileOptions { overrides, micro_batches: parts, ..CompileOptions::default() };
        let plan = pipeline::compile(&models(model, &options), &options).expect("one rank");
        let dataset =
            Dataset::new(Corpus::from_bytes("text", text.clone().into_bytes()), &plan.settings).expect("enough text");
        let options = ExecOptions { threads: 2, ..ExecOptions::default() };
        // The arena is what the plan says, in one block, and what it takes to begin it where a line of memory does.
        let arena = plan.roles[0].device_bytes;
        WANTED.store(arena + ALIGN, Ordering::SeqCst);
        FOUND.store(0, Ordering::SeqCst);
        let mut executor = Executor::new(&plan, &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(FOUND.load(Ordering::SeqCst), 1, "{model}: one arena of {arena} bytes");
        init::initialise(&mut executor).unwrap();
        let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
        let mut step = || trainer.step().unwrap_or_else(|e| panic!("{e}")).loss;
        let (first, _) = (step(), step());
        let before = CALLS.load(Ordering::SeqCst);
        let mut last = 0.0;
        for _ in 0..10 {
            last = step();
        }
        let calls = CALLS.load(Ordering::SeqCst) - before;
        assert_eq!(calls, 0, "{model}: ten steps allocate {calls} times");
        assert!(last < first, "{model} learns: {first} {last}");
    }
}
