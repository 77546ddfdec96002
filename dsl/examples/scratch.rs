use forebay_dsl::model::*;
use forebay_ir::DType;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&args[1]).unwrap();
    let mut options = CheckOptions {
        overrides: vec![],
        narrow: DType::BF16,
        wide: DType::F32,
        training: true,
        micro_batches: 2,
        limits: Limits::default(),
    };
    if args.iter().any(|a| a == "eval") {
        options.training = false;
    }
    for a in &args[2..] {
        if let Some((k, v)) = a.split_once('=') {
            let v = v
                .parse::<i64>()
                .map(Const::Int)
                .or_else(|_| v.parse::<f64>().map(Const::Float))
                .or_else(|_| v.parse::<bool>().map(Const::Bool))
                .unwrap_or(Const::Str(v.into()));
            options.overrides.push((k.into(), v));
        }
    }
    let t = std::time::Instant::now();
    let r = forebay_dsl::load(&text, &options);
    eprintln!("{:?}", t.elapsed());
    let sources = forebay_dsl::std_library::sources(&args[1], &text);
    match r {
        Ok(a) => {
            print!("{}", forebay_dsl::diagnostics::render(&a.warnings, &sources, false));
            if args.iter().any(|a| a == "-q") {
                println!(
                    "ok: {} segments {} layers {} params {}",
                    a.model.segments.len(),
                    a.model.layers.len(),
                    a.model.params.len(),
                    a.model.params.iter().map(|p| p.numel()).sum::<u64>()
                );
                return;
            }
            for s in &a.model.segments {
                println!("{}", s.forward);
                if let Some(u) = &s.update {
                    println!("{u}");
                }
            }
            if let Some(c) = &a.model.counts {
                println!("{c}");
            }
            println!("{:?}", a.model.losses);
            for l in &a.model.layers {
                println!("{l:?}");
            }
            for p in a.model.params.iter().chain(&a.model.states).chain(&a.model.stats).take(60) {
                println!("{p:?}");
            }
        }
        Err(d) => {
            print!("{}", forebay_dsl::diagnostics::render(&d, &sources, false));
            std::process::exit(1)
        }
    }
}
