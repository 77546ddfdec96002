//! What the text of a run says: words by themselves, which are not denied.

/// What denies what comes behind it.
const BEFORE: [&str; 7] = ["no", "not", "non", "without", "disable", "disabled", "skip"];
/// What denies what comes before it, as a value or by itself.
const BEHIND: [&str; 6] = ["false", "off", "none", "no", "0", "disabled"];
/// What may stand around words of an option and its value.
const BETWEEN: [char; 6] = [' ', '-', '_', '"', '\'', '`'];

/// Does a text in lower case say a phrase anywhere? Not as a part of another word (`force` in `enforce_eager`, `ascend` in `ascending`; digits may follow, as in `fsdp2`), and
/// not where it is denied (`no deepep`, `without ep overlap`, `use_megatron_fsdp=false`, `async tp off`).
pub(crate) fn says(text: &str, phrase: &str) -> bool {
    let mut all = text.match_indices(phrase);
    all.any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + phrase.len()..]);
        is_alone(before, phrase, behind) && !is_denied(before, behind)
    })
}

/// Are these words by themselves?
fn is_alone(before: &str, phrase: &str, behind: &str) -> bool {
    let begins = phrase.starts_with(char::is_alphanumeric) && before.ends_with(char::is_alphanumeric);
    let goes_on = if phrase.ends_with(|c: char| c.is_ascii_digit()) {
        // (`1.0` is 1.)
        let decimals = behind.strip_prefix('.').unwrap_or(behind).trim_start_matches('0');
        decimals.starts_with(|c: char| c.is_ascii_digit()) || behind.starts_with('0')
    } else {
        phrase.ends_with(char::is_alphabetic) && behind.starts_with(char::is_alphabetic)
    };
    !begins && !goes_on
}

fn is_denied(before: &str, behind: &str) -> bool {
    let word = |text: &str| text.rsplit(|c: char| !c.is_alphanumeric()).next().map(str::to_string);
    let denied = word(before.trim_end_matches(BETWEEN)).is_some_and(|word| BEFORE.contains(&word.as_str()));
    let behind = behind.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(BETWEEN);
    let (given, value) = match behind.strip_prefix(['=', ':']) {
        Some(value) => (true, value.trim_start_matches(BETWEEN)),
        None => (false, behind),
    };
    let value = value.split(|c: char| !c.is_alphanumeric() && c != '.').next().unwrap_or_default();
    // Without a sign between them only these are not the beginning of another sentence.
    denied || BEHIND.contains(&value) && (given || ["off", "disabled"].contains(&value))
}

/// Is the first release that a text names by its year and month (`26.06`, `26.04.01`) this one or a later one? (Others behind it are what it is compared with, or where something was looked up.)
pub(crate) fn is_from(text: &str, release: &str) -> bool {
    let number = |of: &str| -> Option<(u32, u32)> {
        let mut parts = of.split('.');
        let (year, month) = (parts.next()?, parts.next()?);
        let two = |part: &str| Some(part).filter(|p| p.len() == 2).and_then(|p| p.parse().ok());
        Some((two(year)?, two(month).filter(|month| (1..=12).contains(month))?))
    };
    let Some(least) = number(release) else { return false };
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '.');
    // Years before these are numbers of something else.
    words.find_map(|word| number(word).filter(|named| named.0 >= 20)).is_some_and(|named| named >= least)
}

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
            ("async tp off", "async tp"),
            ("seq_parallel=none", "seq_parallel"),
            ("overlap=0", "overlap"),
        ] {
            assert!(!says(text, phrase), "`{text}` does not say `{phrase}`");
        }
        assert!(says("overlap=0.5", "overlap"));
    }

    #[test]
    fn releases_are_compared() {
        let text = "megatron-bridge performance summary, 26.06.01 nemo container";
        assert!(is_from(text, "26.06") && is_from(text, "25.11") && !is_from(text, "26.08"));
        assert!(!is_from("release 26.04; settings of 26.08", "26.06"));
        assert!(is_from("release 27.01", "26.06") && !is_from("99.13 % of 0.95, 2504.14960, 12.06", "20.01"));
    }
}
