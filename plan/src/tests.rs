//! Files: what is written is read again, and what is not a plan is refused in words.

use crate::schema::Plan;
use crate::testing::{self, Rng};
use crate::{ReadError, Traffic, kernel::*, print, schema::*};
use proptest::prelude::*;

fn error(bytes: &[u8]) -> String {
    Plan::from_bytes(bytes).expect_err("this is no plan").to_string()
}

fn tiny_text() -> String {
    String::from_utf8(testing::tiny().to_bytes()).expect("plans are text")
}

#[test]
fn what_is_written_is_read_again() {
    for seed in 0..40 {
        let plan = testing::random(seed);
        let bytes = plan.to_bytes();
        let read = Plan::from_bytes(&bytes).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(read, plan);
        assert_eq!(read.to_bytes(), bytes);
    }
}

#[test]
fn white_space_and_the_order_of_fields_do_not_matter() {
    let value: serde_json::Value = serde_json::from_str(&tiny_text()).expect("plans are JSON");
    let pretty = serde_json::to_string_pretty(&value).expect("JSON can be written");
    assert_eq!(Plan::from_bytes(pretty.as_bytes()).expect("it is the same plan"), testing::tiny());
}

/// Constants decide about results: every bit of them must survive.
#[test]
fn floats_are_exact() {
    let mut plan = testing::tiny();
    let mut rng = Rng::new(3);
    let special = [f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-6, f64::MIN_POSITIVE / 3.0, f64::MAX, 0.1, 1e22, 1e23];
    let random = (0..2000).map(|_| f64::from_bits(rng.bits())).filter(|v| v.is_finite());
    let values: Vec<f64> = special.into_iter().chain(random).collect();
    let step = |value: &f64| Step { op: StepOp::Cast, dtype: DType::F64, args: vec![Arg::Const(*value)] };
    let Some(Kernel::Region(region)) = plan
        .programs
        .iter_mut()
        .flat_map(|p| &mut p.instructions)
        .map(|i| &mut i.kernel)
        .find(|k| k.name() == "region")
    else {
        unreachable!("the tiny plan has a region")
    };
    region.steps.extend(values.iter().map(step));
    let read = Plan::from_bytes(&plan.to_bytes()).expect("floats can be read");
    let bits = |plan: &Plan| -> Vec<u64> {
        let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| &i.kernel);
        let steps = kernels.filter_map(|k| if let Kernel::Region(r) = k { Some(&r.steps) } else { None }).flatten();
        let args = steps.flat_map(|s| &s.args);
        args.filter_map(|a| if let Arg::Const(v) = a { Some(v.to_bits()) } else { None }).collect()
    };
    assert_eq!(bits(&read), bits(&plan));
}

#[test]
fn a_changed_digit_is_noticed() {
    let text = tiny_text().replacen("0.5", "0.25", 1);
    assert!(error(text.as_bytes()).starts_with("the plan is damaged: its checksum is "), "{}", error(text.as_bytes()));
}

#[test]
fn the_checksum_is_fnv_1a_of_what_stands_before_it() {
    let text = tiny_text();
    let (contents, rest) = text.rsplit_once("\"checksum\":").expect("it has a checksum");
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = contents.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    assert_eq!(rest.trim_end(), format!("\"{hash:016x}\"}}"));
}

#[test]
fn what_is_no_plan_is_refused() {
    let text = tiny_text();
    let cut = &text[..text.len() / 2];
    let next =
        text.replacen(&format!("\"version\":{VERSION}"), &format!("\"version\":{},\"later\":[[", VERSION + 1), 1);
    let nested = format!("{{\"format\":\"forebay-plan\",\"version\":{VERSION},\"model\":{}", "[".repeat(100_000));
    let mut no_utf8 = text.clone().into_bytes();
    no_utf8[text.find("made_up").expect("the model's name")] = 0xff;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("spaces", b" \n ".to_vec()),
        ("a model", b"model Tiny(d = 4) {\n  input tokens: token[batch, seq]\n}".to_vec()),
        ("binary", vec![0x1f, 0x8b, 8, 0, 0, 0xff, 0xfe]),
        ("other JSON", br#"{"hello": [1, 2]}"#.to_vec()),
        ("a list", b"[1, 2]".to_vec()),
        ("another format", br#"{"format": "safetensors", "version": 5}"#.to_vec()),
        ("a format of another type", br#"{"format": {"a": 1}, "version": 5}"#.to_vec()),
        ("broken JSON", br#"{"hello" 1}"#.to_vec()),
        ("no version", br#"{"format": "forebay-plan"}"#.to_vec()),
        ("a later version, otherwise unreadable", next.into_bytes()),
        ("a version in words", br#"{"format":"forebay-plan","version":"one"}"#.to_vec()),
        ("the version alone", br#"{"format":"forebay-plan","version":4}"#.to_vec()),
        ("cut off", cut.as_bytes().to_vec()),
        ("cut off early", br#"{"form"#.to_vec()),
        ("more behind", format!("{text}{{}}").into_bytes()),
        ("an unknown field", text.replacen("\"mesh\":", "\"colour\":1,\"mesh\":", 1).into_bytes()),
        ("a field twice", text.replacen("\"mesh\":", "\"mesh\":[],\"mesh\":", 1).into_bytes()),
        ("an unknown kernel", text.replacen("\"gather\":", "\"gathers\":", 1).into_bytes()),
        ("a negative number", text.replacen("\"elements\":", "\"elements\":-", 1).into_bytes()),
        ("a huge number", text.replacen("\"elements\":", "\"elements\":99999999999999999999", 1).into_bytes()),
        ("deep nesting", nested.into_bytes()),
        ("no UTF-8", no_utf8),
        ("deep nesting in the unknown", format!("{{\"deep\":{}", "[".repeat(100_000)).into_bytes()),
        ("a wrong checksum", text.replacen("\"checksum\":\"", "\"checksum\":\"0", 1).into_bytes()),
    ];
    let messages: Vec<String> = cases.iter().map(|(what, bytes)| format!("{what}\n    {}\n", error(bytes))).collect();
    insta::assert_snapshot!(messages.concat());
}

#[test]
fn an_invalid_plan_is_refused_with_all_that_is_wrong() {
    let mut plan = testing::tiny();
    plan.settings.vocab = 0;
    plan.roles[0].phases[0].calls[1].layer = 9;
    let bytes = plan.to_bytes();
    assert!(matches!(Plan::from_bytes(&bytes), Err(ReadError::Invalid(v)) if v.len() == 2));
    assert_eq!(Plan::parse(&bytes).expect("it can be looked at"), plan);
}

#[test]
fn a_stream_is_read_up_to_its_limit() {
    let bytes = testing::tiny().to_bytes();
    let n = bytes.len() as u64;
    assert!(Plan::read_from(bytes.as_slice(), n).is_ok());
    assert!(matches!(Plan::read_from(bytes.as_slice(), n - 1), Err(ReadError::TooLarge { .. })));
    assert!(matches!(Plan::read_from(std::io::repeat(b' '), 1000), Err(ReadError::TooLarge { limit: 1000 })));
}

#[test]
fn a_plan_is_shown() {
    insta::assert_snapshot!(print::text(&testing::tiny()));
}

#[test]
fn a_rank_of_a_plan_is_shown() {
    let plan = testing::pipeline();
    insta::assert_snapshot!(print::rank(&plan, 3).expect("there are four"));
    assert_eq!(print::rank(&plan, 4), None);
}

#[test]
fn operands_and_costs() {
    let plan = testing::tiny();
    let program = &plan.programs[1];
    let named =
        |name: &str| &program.instructions.iter().find(|i| i.name == name).expect("the tiny plan has it").kernel;
    let product = named("product");
    // The product, and an addition for each element of its epilogue.
    assert_eq!(product.flops(), 2.0 * 32.0 * 8.0 * 8.0 + 256.0);
    // 32×8, the 8×8 that are read of b, the 32×8 that are added, and 32×8, in f32.
    assert_eq!(product.traffic(&program.buffers), Traffic { read: 4 * (256 + 64 + 256), written: 4 * 256 });
    assert_eq!(product.reads().count(), 3);
    assert_eq!(product.writes().count(), 1);
    // Row sums and maxima visit every element, what follows from them alone a row.
    assert_eq!(named("softmax").flops(), 5.0 * 256.0 + 256.0);
    // Two heads, products over 8 elements; positions are known at run time, but none sees more than the 3 keys of the window.
    let products = |seen: f64, n: f64| 2.0 * 2.0 * seen * 8.0 * n;
    assert_eq!(named("attention").flops(), products(32.0 * 3.0, 2.0));
    assert_eq!(named("attention.gradients").flops(), products(32.0 * 3.0, 5.0));
    // From the first key on, 32 queries see 3 keys each, but for the first two.
    let Kernel::Attention(mut attention) = named("attention").clone() else { panic!("attention") };
    attention.inputs.positions = None;
    assert_eq!(Kernel::Attention(attention).flops(), products(3.0 * 32.0 - 3.0, 2.0));
    for instruction in &program.instructions {
        let kernel = &instruction.kernel;
        assert!(kernel.writes().count() > 0, "{}", kernel.name());
        assert!(kernel.operands().iter().all(|o| o.end().is_some_and(|e| e > 0)), "{}", kernel.name());
    }
}

/// Bytes of a plan with some changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let bytes = testing::tiny().to_bytes();
    let n = bytes.len();
    let change = (0..n, prop_oneof![any::<u8>(), Just(b'9'), Just(b'-'), Just(b'"'), Just(b'['), Just(b'}')]);
    (prop::collection::vec(change, 1..8), any::<Option<u16>>()).prop_map(move |(changes, cut)| {
        let mut bytes = bytes.clone();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes.truncate(cut.map_or(n, |cut| n * usize::from(cut) / usize::from(u16::MAX)));
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_never_panic(bytes in damaged()) {
        let original = testing::tiny();
        // Almost all damage is noticed; what is not changes nothing.
        if let Ok(plan) = Plan::from_bytes(&bytes) {
            prop_assert_eq!(plan, original);
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Plan::from_bytes(&bytes).is_err());
    }

    #[test]
    fn printing_never_panics(seed in any::<u64>(), huge in any::<u64>()) {
        let mut plan = testing::random(seed);
        for instruction in plan.programs.iter_mut().flat_map(|p| &mut p.instructions) {
            match &mut instruction.kernel {
                Kernel::Matmul(k) => (k.m.0, k.k.0) = (huge, huge),
                Kernel::Attention(k) => (k.inputs.keys, k.inputs.window) = (huge, huge / 2),
                _ => {}
            }
            instruction.stream = huge as u32;
        }
        prop_assert!(!print::text(&plan).is_empty());
    }
}

/// The page on the format shows a plan and lists the rules: both as they are.
#[test]
fn the_page_on_the_format_is_true() {
    let page = include_str!("../../docs/plan-format.md");
    let example =
        page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("there is an example");
    let plan = Plan::from_bytes(example.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(String::from_utf8(plan.to_bytes()).expect("plans are text"), example);
    let rules = crate::verify::Rule::ALL.iter().map(|r| format!("- `{}`: {}\n", r.name(), r.meaning()));
    let rules: String = rules.collect();
    assert!(page.contains(&rules), "the rules are\n{rules}");
}
