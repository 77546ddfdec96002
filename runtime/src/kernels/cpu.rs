//! Which instructions the kernels may use.

use std::sync::OnceLock;

/// A level of CPU features, never above what this machine has: a value of this type is the licence to call the code compiled for it.
///
/// Matrix products, attention and linear attention may differ in their last bits between `portable` and the others (which fuse multiplication and addition there), and products and attention of bf16
/// between `amx` (which sums sixteen pairs of products at a time), `avx512bf16` (which sums pairs; both take denormal numbers for zeros, and in attention round to bf16 what they
/// multiply) and the others; products of f32 also between `amx`, which makes them of products of bf16 (and NaN of infinities, and may make zeros of what is tiny), and the others. Everything else gives equal bits at every level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    level: Level,
    jit: Jit,
    /// How are products of bf16 to be summed, if not as the level does? See [`Cpu::emulating`].
    #[cfg(test)]
    emulated: Option<Bf16>,
}

/// Are regions compiled to machine code?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Jit {
    /// Never.
    Off,
    /// Where that is faster.
    #[default]
    Auto,
    /// Wherever it can be done.
    On,
}

impl Jit {
    /// The mode of this name: `off`, `auto` or `on`.
    pub fn named(name: &str) -> Option<Jit> {
        match name {
            "off" => Some(Jit::Off),
            "auto" => Some(Jit::Auto),
            "on" => Some(Jit::On),
            _ => None,
        }
    }

    /// What the environment asks for (`FOREBAY_JIT`), so that whatever runs kernels can be run either way.
    fn asked() -> Jit {
        static ASKED: OnceLock<Jit> = OnceLock::new();
        *ASKED.get_or_init(|| std::env::var("FOREBAY_JIT").ok().and_then(|name| Jit::named(&name)).unwrap_or_default())
    }
}

/// The levels, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Whatever the target has at least.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same and BF16: products of pairs of bf16.
    Avx512Bf16,
    /// The same and AMX: products of tiles of bf16, and of f32 in parts.
    Amx,
}

/// Which vectors a level has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Vectors {
    Portable,
    Avx2,
    Avx512,
}

/// How products of bf16 are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bf16 {
    /// As those of f32.
    Widened,
    /// In pairs, as `VDPBF16PS` does.
    Pairs,
    /// In tiles, as `TDPBF16PS` does.
    Tiles,
}

impl Cpu {
    fn of(level: Level) -> Cpu {
        Cpu {
            level,
            jit: Jit::asked(),
            #[cfg(test)]
            emulated: None,
        }
    }

    /// The level that is fastest on this machine.
    pub fn detect() -> Cpu {
        let level = match vectors_and_pairs() {
            _ if has_tiles() => Level::Amx,
            // There a pair took as long as four multiply-adds of f32, so that panels of those are twice as fast (measured on one Xeon, its tiles switched off).
            // Regions round to bf16 by more instructions then.
            Level::Avx512Bf16 if is_intel() => Level::Avx512,
            level => level,
        };
        Cpu::of(level)
    }

    /// The level of this name (`amx`, `avx512bf16`, `avx512`, `avx2`, `portable`), or what the machine has where that is less
    /// (which may be slower than what [`Cpu::detect`] gives); nothing for another name.
    pub fn named(name: &str) -> Option<Cpu> {
        let level = match name {
            "portable" => Level::Portable,
            "avx2" => Level::Avx2,
            "avx512" => Level::Avx512,
            "avx512bf16" => Level::Avx512Bf16,
            "amx" if has_tiles() => return Some(Cpu::of(Level::Amx)),
            "amx" => Level::Amx,
            _ => return None,
        };
        Some(Cpu::of(level.min(vectors_and_pairs())))
    }

    /// The name that [`Cpu::named`] takes.
    pub fn name(self) -> &'static str {
        match self.level {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512bf16",
            Level::Amx => "amx",
        }
    }

    /// The same level with regions compiled or not.
    pub fn with_jit(self, jit: Jit) -> Cpu {
        Cpu { jit, ..self }
    }

    pub(crate) fn jit(self) -> Jit {
        self.jit
    }

    pub(crate) fn vectors(self) -> Vectors {
        match self.level {
            Level::Portable => Vectors::Portable,
            Level::Avx2 => Vectors::Avx2,
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => Vectors::Avx512,
        }
    }

    pub(crate) fn bf16(self) -> Bf16 {
        #[cfg(test)]
        if let Some(emulated) = self.emulated {
            return emulated;
        }
        match self.level {
            Level::Portable | Level::Avx2 | Level::Avx512 => Bf16::Widened,
            Level::Avx512Bf16 => Bf16::Pairs,
            Level::Amx => Bf16::Tiles,
        }
    }

    /// Has the level the instruction that rounds two vectors to bf16? It comes with that for pairs.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn rounds_vectors(self) -> bool {
        self.has(Bf16::Pairs)
    }

    /// The same level with sums of products of bf16 made so, by other instructions where it lacks them: what is around those instructions is tested on
    /// every machine.
    #[cfg(test)]
    pub(crate) fn emulating(self, bf16: Bf16) -> Cpu {
        Cpu { emulated: Some(bf16), ..self }
    }

    /// Does a test ask for a way of summing, however small the product is?
    pub(crate) fn emulates(self) -> bool {
        #[cfg(test)]
        return self.emulated.is_some();
        #[cfg(not(test))]
        false
    }

    /// Has it the instructions for products of bf16 that are summed so?
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has(self, bf16: Bf16) -> bool {
        match bf16 {
            Bf16::Widened => true,
            Bf16::Pairs => self.level >= Level::Avx512Bf16,
            Bf16::Tiles => self.level >= Level::Amx,
        }
    }
}

/// The highest level that the machine has, tiles aside.
fn vectors_and_pairs() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match (avx2, avx512, is_x86_feature_detected!("avx512bf16")) {
                (true, true, true) => Level::Avx512Bf16,
                (true, true, false) => Level::Avx512,
                (true, false, _) => Level::Avx2,
                _ => Level::Portable,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Level::Portable
    })
}

/// May this process use the tiles of AMX? Asked once, and only where they may be chosen: the system lets a process have them for good, with larger frames of signals.
fn has_tiles() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        static TILES: OnceLock<bool> = OnceLock::new();
        *TILES.get_or_init(|| vectors_and_pairs() == Level::Avx512Bf16 && super::matmul::amx::is_there())
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let leaf = std::arch::x86_64::__cpuid(0);
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Compiles an `#[inline(always)]` function for each CPU level: `by_cpu!(unsafe fn name / body(a: A, b: B))` makes `name(cpu, a, b)`, which calls `body(a, b)`
/// with the features of the level. Its contract is the body's.
macro_rules! by_cpu {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident / $body:ident $(<$($generic:ident: $bound:path),*>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name $(<$($generic: $bound),*>)? (cpu: $crate::kernels::cpu::Cpu, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                unsafe fn avx512 $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's contract.
                    unsafe { $body $(::<$($generic),*>)? ($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                unsafe fn avx2 $(<$($generic: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's contract.
                    unsafe { $body $(::<$($generic),*>)? ($($arg),*) }
                }
                match cpu.vectors() {
                    // SAFETY: a `Cpu` is never above what the machine has; the rest is the caller's contract.
                    $crate::kernels::cpu::Vectors::Avx512 => return unsafe { avx512 $(::<$($generic),*>)? ($($arg),*) },
                    // SAFETY: as above.
                    $crate::kernels::cpu::Vectors::Avx2 => return unsafe { avx2 $(::<$($generic),*>)? ($($arg),*) },
                    $crate::kernels::cpu::Vectors::Portable => {}
                }
            }
            let _ = cpu;
            // SAFETY: the caller's contract.
            unsafe { $body $(::<$($generic),*>)? ($($arg),*) }
        }
    };
}
pub(crate) use by_cpu;
