//! From Cranelift's functions to memory that can be called.

use super::super::ops::Arg;
use crate::kernels::Buf;
use crate::kernels::cpu::{Cpu, Vectors};
use cranelift_codegen::ir::{AbiParam, Endianness, Function, Signature, UserFuncName, types};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Module, default_libcall_names};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What is called: operands and where accesses start, as a frame has them; buffers; the first column of the block, its rows and columns.
pub(super) type Entry = unsafe extern "C" fn(*const Arg, *const usize, *const Buf, usize, usize, usize);
/// Parameters of an [`Entry`].
pub(super) const PARAMETERS: usize = 6;

/// Machine code of a function.
pub(in super::super) struct Code {
    /// Nothing once it has been given back.
    module: Option<JITModule>,
    entry: *const u8,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code").field("entry", &self.entry).finish_non_exhaustive()
    }
}

// SAFETY: the code does not change once it is finished; the module is only touched when it is dropped.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Its first instruction.
    #[cfg(target_arch = "x86_64")]
    pub fn entry(&self) -> *const u8 {
        self.entry
    }

    /// Runs a function that [`compile`] made.
    ///
    /// # Safety
    /// Tables and buffers are those of the program that it was compiled from, set for the block.
    pub unsafe fn call(&self, operands: *const Arg, starts: *const usize, buffers: *const Buf, block: [usize; 3]) {
        let [first_column, rows, columns] = block;
        // SAFETY: the caller's contract; the memory of the entry lives as long as this.
        unsafe {
            let entry = std::mem::transmute::<*const u8, Entry>(self.entry);
            entry(operands, starts, buffers, first_column, rows, columns);
        }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: whoever could call the code holds a reference to this, of which there are none left.
            unsafe { module.free_memory() }
        }
    }
}

/// Instructions that code for a CPU level may use; nothing where Cranelift does not know the machine.
pub(super) fn target(cpu: Cpu) -> Option<&'static OwnedTargetIsa> {
    static PORTABLE: OnceLock<Option<OwnedTargetIsa>> = OnceLock::new();
    static AVX2: OnceLock<Option<OwnedTargetIsa>> = OnceLock::new();
    static NATIVE: OnceLock<Option<OwnedTargetIsa>> = OnceLock::new();
    let (cell, infers) = match cpu.vectors() {
        Vectors::Portable => (&PORTABLE, false),
        Vectors::Avx2 => (&AVX2, true),
        _ => (&NATIVE, true),
    };
    cell.get_or_init(|| {
        let mut flags = settings::builder();
        // Without optimisation instructions stay in the order in which they are made, which has several registers side by side. (With it each is made where it is
        // used, one register after the other, which takes 1.2 times as long.)
        for (name, value) in [
            ("opt_level", "none"),
            ("is_pic", "false"),
            ("unwind_info", "false"),
            // Large frames touch every page of the stack, the guard among them.
            ("enable_probestack", "true"),
            ("probestack_strategy", "inline"),
        ] {
            flags.set(name, value).ok()?;
        }
        let verifies = if cfg!(debug_assertions) { "true" } else { "false" };
        flags.set("enable_verifier", verifies).ok()?;
        let mut isa = cranelift_native::builder_with_options(infers).ok()?;
        if cpu.vectors() == Vectors::Avx2 {
            // (No error where a machine has no such thing.)
            for above in ["has_avx512f", "has_avx512vl", "has_avx512dq", "has_avx512bitalg", "has_avx512vbmi"] {
                let _ = isa.set(above, "false");
            }
        }
        let isa = isa.finish(settings::Flags::new(flags)).ok()?;
        // What is made here takes pointers for 64 bits, and the first of several numbers for the lowest.
        (isa.pointer_bits() == 64 && isa.endianness() == Endianness::Little).then_some(isa)
    })
    .as_ref()
}

/// The signature of an [`Entry`].
pub(super) fn signature(isa: &OwnedTargetIsa) -> Signature {
    let mut signature = Signature::new(isa.default_call_conv());
    signature.params.extend([AbiParam::new(types::I64); PARAMETERS]);
    signature
}

/// Functions that this process has compiled, and how long that took.
static FUNCTIONS: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// How many functions this process has compiled, and the time for all of them.
pub(super) fn compiled() -> (u64, Duration) {
    (FUNCTIONS.load(Ordering::Relaxed), Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)))
}

/// Code by target and its function, as text or bytes: layers and tensors that differ in their sizes only share it.
type Known = HashMap<(usize, Vec<u8>), Weak<Code>>;

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    // Whatever a thread that panicked has left is whole: entries are only added and removed.
    KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compiles a function; nothing where the machine lacks an instruction for it.
pub(super) fn compile(isa: &'static OwnedTargetIsa, make: impl FnOnce(&mut Function)) -> Option<Arc<Code>> {
    let start = Instant::now();
    let mut function = Function::with_name_signature(UserFuncName::default(), signature(isa));
    make(&mut function);
    let key = (std::ptr::from_ref(isa).addr(), function.display().to_string().into_bytes());
    shared(isa, key, start, |module| define(module, function))
}

/// Machine code that was made elsewhere (`region/wide`), with nothing in it that depends on where it is.
#[cfg(target_arch = "x86_64")]
pub(in super::super) fn publish(bytes: &[u8], cpu: Cpu) -> Option<Arc<Code>> {
    shared(target(cpu)?, (0, bytes.to_vec()), Instant::now(), |module| {
        let signature = module.make_signature();
        let id = module.declare_anonymous_function(&signature).ok()?;
        module.define_function_bytes(id, ALIGNMENT, bytes, &[]).ok()?;
        module.finalize_definitions().ok()?;
        Some(module.get_finalized_function(id))
    })
}

/// Bytes: a cache line.
#[cfg(target_arch = "x86_64")]
const ALIGNMENT: u64 = 64;

/// The code of a key, made if there is none yet.
fn shared(
    isa: &OwnedTargetIsa,
    key: (usize, Vec<u8>),
    start: Instant,
    define: impl FnOnce(&mut JITModule) -> Option<*const u8>,
) -> Option<Arc<Code>> {
    if let Some(code) = known().get(&key).and_then(Weak::upgrade) {
        return Some(code);
    }
    let mut builder = JITBuilder::with_isa(isa.clone(), default_libcall_names());
    // Where the machine does not round to integers itself, code calls these; a program need not have them of the system.
    builder.symbols([("floorf", floorf as *const u8), ("floor", floor as *const u8)]);
    let mut module = JITModule::new(builder);
    let Some(entry) = define(&mut module) else {
        // SAFETY: nothing of it can be called.
        unsafe { module.free_memory() };
        return None;
    };
    let code = Arc::new(Code { module: Some(module), entry });
    let mut known = known();
    if let Some(other) = known.get(&key).and_then(Weak::upgrade) {
        // Another thread was faster.
        return Some(other);
    }
    FUNCTIONS.fetch_add(1, Ordering::Relaxed);
    NANOSECONDS.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    known.retain(|_, code| code.strong_count() > 0);
    known.insert(key, Arc::downgrade(&code));
    Some(code)
}

extern "C" fn floorf(x: f32) -> f32 {
    x.floor()
}

extern "C" fn floor(x: f64) -> f64 {
    x.floor()
}

fn define(module: &mut JITModule, function: Function) -> Option<*const u8> {
    let mut context = module.make_context();
    context.func = function;
    let id = module.declare_anonymous_function(&context.func.signature).ok()?;
    let defined = module.define_function(id, &mut context);
    debug_assert!(!matches!(&defined, Err(e) if e.to_string().contains("erifier")), "{defined:?}");
    defined.ok()?;
    module.finalize_definitions().ok()?;
    Some(module.get_finalized_function(id))
}
