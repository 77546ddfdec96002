use forebay_compiler::rewrite::{rewrite, Options};
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let model = forebay_dsl::load(&text, &forebay_compiler::pipeline::CompileOptions::default().check_options(true, None, 1)).unwrap_or_else(|_| panic!()).model;
    for s in &model.segments {
        let start = std::time::Instant::now();
        let (g, r) = rewrite(&s.forward, &Options::default());
        println!("{}", forebay_ir::text::print(&g));
        println!("{:?} {:?}", start.elapsed(), r);
    }
}
