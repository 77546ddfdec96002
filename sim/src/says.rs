//! What the text of a run says: words by themselves, which are not denied.

use forebay_cost::Release;
use regex_lite::Regex;
use std::sync::LazyLock;

/// What denies what comes behind it.
const BEFORE: [&str; 9] = ["no", "not", "non", "nor", "neither", "without", "disable", "disabled", "skip"];
/// What something is compared with, a system's name between: `faster than DeepSpeed ZeRO-3`, `compared with FSDP`, `vs. NeMo`.
static COMPARED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?i)\b(?:than|vs\.?|versus|unlike|against|compared (?:with|to)|relative to|instead of)\s+(?:the\s+)?(?:\w+\s+)?$";
    Regex::new(pattern).expect("the pattern is right")
});
/// What denies what comes before it, as a value.
const BEHIND: [&str; 8] = ["false", "off", "none", "null", "never", "no", "0", "disabled"];
/// The same by itself: others may begin another sentence.
const ALONE: [&str; 3] = ["false", "off", "disabled"];
/// The same in a sentence.
const UNUSED: [&str; 5] = ["not used", "is not used", "was not used", "unused", "not enabled"];
/// What may stand around words of an option and its value.
const BETWEEN: [char; 8] = [' ', '-', '_', '"', '\'', '`', '(', '['];
/// What may end a word that is still the same: optimizers, parallelism, forced, dropped, dropping.
const ENDINGS: [&str; 5] = ["s", "ism", "d", "ped", "ping"];

/// Does a text in lower case say a phrase (true), deny it wherever it stands (false), or not have it? It stands there by itself, not as a part of another word (`force` in `enforce_eager`,
/// `ascend` in `ascending`; digits may follow, as in `fsdp2`), and is denied by a word before it or a value behind (`no deepep`, `without ep overlap`, `use_megatron_fsdp=false`, `async tp off`).
/// Hyphens and underscores are spaces: `--tp-comm-overlap` says `tp comm overlap`.
pub(crate) fn said(text: &str, phrase: &str) -> Option<bool> {
    let (text, phrase) = (spaced(text), spaced(phrase));
    let parts = text.match_indices(&phrase).map(|(at, _)| (&text[..at], &text[at + phrase.len()..]));
    let alone = parts.filter(|(before, behind)| is_alone(before, &phrase, behind));
    alone.map(|(before, behind)| !is_denied(before, behind)).reduce(|one, other| one || other)
}

/// Of the same length.
pub(crate) fn spaced(text: &str) -> String {
    text.replace(['-', '_'], " ")
}

/// Does it say the phrase?
pub(crate) fn says(text: &str, phrase: &str) -> bool {
    said(text, phrase) == Some(true)
}

/// What it says of the first of some phrases that it says, else whether it denies one.
pub(crate) fn said_any(text: &str, phrases: &[&str]) -> Option<bool> {
    phrases.iter().filter_map(|phrase| said(text, phrase)).reduce(|one, other| one || other)
}

/// Are these words by themselves?
fn is_alone(before: &str, phrase: &str, behind: &str) -> bool {
    let begins = phrase.starts_with(char::is_alphanumeric) && before.ends_with(char::is_alphanumeric);
    let goes_on = if phrase.ends_with(|c: char| c.is_ascii_digit()) {
        // (`1.0` is 1.)
        let decimals = behind.strip_prefix('.').unwrap_or(behind).trim_start_matches('0');
        decimals.starts_with(|c: char| c.is_ascii_digit()) || behind.starts_with('0')
    } else if phrase.ends_with(char::is_alphabetic) {
        let rest = behind.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        !rest.is_empty() && !ENDINGS.contains(&rest)
    } else {
        false
    };
    !begins && !goes_on
}

/// Is what stands between these denied?
pub(crate) fn is_denied(before: &str, behind: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric();
    // (The library of an option may stand between: `no torch.compile`.)
    let before = before.strip_suffix('.').map_or(before, |owner| owner.trim_end_matches(is_word));
    let word = before.trim_end_matches(BETWEEN).rsplit(|c| !is_word(c)).next().unwrap_or_default();
    let behind = behind.trim_start_matches(is_word).trim_start_matches(BETWEEN);
    // (An option may be a key of what is named: `compile.enable = false`.)
    let key = behind.trim_start_matches(['.', ']', ' ']);
    let behind = ["enabled", "enable"]
        .iter()
        .find_map(|word| key.strip_prefix(word))
        .unwrap_or(behind)
        .trim_start_matches(BETWEEN);
    let (given, value) = match behind.strip_prefix(['=', ':']) {
        Some(value) => (true, value.trim_start_matches(BETWEEN)),
        None => (false, behind),
    };
    let value = value.split(|c| !is_word(c) && c != '.').next().unwrap_or_default().trim_end_matches('.');
    is_compared(before)
        || BEFORE.contains(&word)
        || UNUSED.iter().any(|words| behind.starts_with(words))
        || if given { BEHIND.contains(&value) } else { ALONE.contains(&value) }
}

/// The number that a text gives a phrase (`capacity factor 1.25`, `capacity_factor=2`, `--moe-expert-capacity-factor: "1.5"`), where it says the phrase by itself and gives it one.
pub(crate) fn number_of(text: &str, phrase: &str) -> Option<f64> {
    let (plain, phrase) = (spaced(text), spaced(phrase));
    let ends = plain.match_indices(&phrase).filter_map(|(at, _)| {
        let (before, behind) = (&plain[..at], &plain[at + phrase.len()..]);
        (is_alone(before, &phrase, behind) && !is_denied(before, behind)).then_some(at + phrase.len())
    });
    ends.filter_map(|end| leading_number(&text[end..])).next()
}

/// The number that a text begins with, behind what may stand between an option and its value: thousands apart or not, `4k` as 4,096. None of a ratio (`5:1`).
fn leading_number(text: &str) -> Option<f64> {
    let found = NUMBER.captures(text)?;
    let number: f64 = found[1].replace(',', "").parse().ok()?;
    let is_ratio = text[found.get(0)?.end()..].starts_with(':');
    (!is_ratio).then_some(if found.get(2).is_some() { 1024.0 * number } else { number })
}

static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"^[ _="'`:]*(?:of |to )?[ "']*(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)([kK]\b)?"#;
    Regex::new(pattern).expect("the pattern is right")
});

/// Is what comes next what something is compared with?
pub(crate) fn is_compared(before: &str) -> bool {
    COMPARED.is_match(before)
}

/// The first release that a text names by its year and month (`26.06`, `26.04.01`, `v25.11`), and neither denies nor compares with. (Others behind it are what it is compared with, or where something was looked up.)
pub(crate) fn named_release(text: &str) -> Option<Release> {
    let named = RELEASE.captures_iter(text).filter_map(|found| {
        let whole = found.get(0)?;
        let (before, behind) = (&text[..whole.start()], &text[whole.end()..]);
        let word =
            before.trim_end_matches([' ', ':']).rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let of_else = OTHERS.contains(&word.to_lowercase().as_str()) || UNIT.is_match(behind);
        let alone = !before.ends_with(|c: char| c.is_alphanumeric() || c == '.' || c == '-');
        Release::parse(&found[1]).filter(|_| alone && !of_else && !is_denied(before, behind))
    });
    named.into_iter().find(|release| YEARS.contains(&release.year))
}

/// Years of releases: other numbers of this form are of something else.
const YEARS: std::ops::RangeInclusive<u32> = 20..=35;

/// What has such numbers before it that are no releases.
const OTHERS: [&str; 4] = ["arxiv", "step", "mfu", "loss"];

static RELEASE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[vr]?(\d\d\.\d\d(?:\.\d+)*)").expect("the pattern is right"));
static UNIT: LazyLock<Regex> = LazyLock::new(|| {
    let units = "%|×|x|s|ms|us|µs|sec|seconds|h|hours|gb|gib|mb|mib|tb|tib|gbps|gb/s|tflops?|pflops?|flops|tokens?|k|m|b|billion|million";
    Regex::new(&format!(r"(?i)^(?:\d|\.\d|\s?(?:{units})(?:[^a-z0-9]|$))")).expect("the pattern is right")
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_by_themselves_count() {
        for (text, phrase) in [
            ("fsdp2 + torch.compile", "fsdp"),
            ("moe_flex_dispatcher_backend=\"hybridep\"", "hybridep"),
            ("x; router force-balanced, dropless", "force"),
            ("no tp overlap; deepep", "deepep"),
            ("capacity factor 1; dropless", "capacity factor 1"),
            ("capacity factor 1.0, padded", "capacity factor 1"),
            ("no deepep in 2024; deepep since", "deepep"),
            ("deepep. no other", "deepep"),
            ("sequence parallelism", "sequence parallel"),
            ("distributed optimizers", "distributed optimizer"),
            ("token-dropping", "token-drop"),
            ("forced routing", "force"),
            ("--tp-comm-overlap", "tp comm overlap"),
            ("use_distributed_optimizer: true", "distributed optimizer"),
            ("faster than it was; deepep", "deepep"),
        ] {
            assert!(says(text, phrase), "`{text}` says `{phrase}`");
        }
        for (text, phrase) in [
            ("enforce_eager", "force"),
            ("stages listed in ascending order", "ascend"),
            ("nemotron", "nemo"),
            ("capacity factor 1.5", "capacity factor 1"),
            ("capacity factor 16", "capacity factor 1"),
            ("capacity factor 10", "capacity factor 1"),
            ("capacity factor 1.05", "capacity factor 1"),
            ("no deepep", "deepep"),
            ("without ep overlap", "ep overlap"),
            ("use_megatron_fsdp=false", "fsdp"),
            ("use_megatron_fsdp: \"false\"", "fsdp"),
            ("--no-overlap-grad-reduce", "overlap-grad-reduce"),
            ("async tp off.", "async tp"),
            ("deepep=false. more", "deepep"),
            ("ep overlap (off)", "ep overlap"),
            ("torchtitan; no torch.compile", "compile"),
            ("untied embeddings", "tied embeddings"),
            ("tied embeddings false", "tied embeddings"),
            ("seq_parallel=none", "seq_parallel"),
            ("overlap=0", "overlap"),
            ("fsdp2 compile.enable=false", "compile"),
            ("--compile.enable false", "compile"),
            ("faster than deepspeed zero-3", "zero-3"),
            ("compared with fsdp", "fsdp"),
            ("1.2 times vs. nemo", "nemo"),
            ("expert_capacity: null", "expert capacity"),
        ] {
            assert!(!says(text, phrase), "`{text}` does not say `{phrase}`");
        }
        assert!(says("overlap=0.5", "overlap"));
        assert_eq!([said("no fsdp", "fsdp"), said("zero-3", "fsdp")], [Some(false), None]);
        assert_eq!(said_any("no fsdp, hsdp", &["fsdp", "hsdp"]), Some(true));
    }

    #[test]
    fn numbers_are_read() {
        let of = |text: &str| number_of(text, "capacity factor");
        let texts = [
            "capacity factor 1.25, padded",
            "capacity factor=2.",
            "a capacity factor of 1.5",
            "capacity factor: \"4\"",
        ];
        assert_eq!(texts.map(of), [Some(1.25), Some(2.0), Some(1.5), Some(4.0)]);
        let none = ["no capacity factor", "capacity factor -1", "capacity factor none", "capacity factors", "1.25"];
        assert_eq!(none.map(of), [None; 5]);
        assert_eq!(of("no capacity factor 2 before; capacity factor 3"), Some(3.0));
        let window = |text: &str| number_of(text, "sliding window");
        assert_eq!(
            ["sliding window 4,096", "sliding_window=4k", "sliding window 512"].map(window),
            [Some(4096.0), Some(4096.0), Some(512.0)]
        );
        assert_eq!(["sliding window 5:1 local", "sliding window (2 nodes)"].map(window), [None; 2]);
    }

    #[test]
    fn releases_are_compared() {
        let text = "megatron-bridge performance summary, 26.06.01 nemo container";
        let of = |text: &str| named_release(text).map(|of| (of.year, of.month));
        assert_eq!([of(text), of("release 26.04; settings of 26.08")], [Some((26, 6)), Some((26, 4))]);
        for (text, release) in [
            ("mfu 31.12 %; release 25.11", (25, 11)),
            ("v25.11, 120.05% more", (25, 11)),
            ("nemo:25.04", (25, 4)),
            ("26.06 h100, 26.08", (26, 6)),
            ("26.02 b200", (26, 2)),
            ("faster than 20.05; r24.03", (24, 3)),
            ("dgxc-benchmarking 25.05 readme", (25, 5)),
        ] {
            assert_eq!(of(text), Some(release), "{text}");
        }
        for text in [
            "99.13 % of 0.95, 2504.14960, 12.06",
            "arxiv 25.11",
            "24.10 gb",
            "24.10gib",
            "step 20.05",
            "20.05 s",
            "31.12 tflops",
            "not 25.05",
            "faster than 20.05",
            "26.13",
            "125.05",
            "25.056",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
