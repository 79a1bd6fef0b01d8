//! One call of the pool beside many of something: for `scripts/scale`, which has valgrind count its instructions.
//!
//! ```text
//! scale                    the cases, with the growth that each may have
//! scale CASE SIZE          measures one beside so many; prints the parts that were watched, and nanoseconds
//! ```

use std::error::Error;

use millpond_bench::scale::Case;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, size] = &args[..] else {
        for case in Case::ALL {
            let growth = case.growth.map_or("-".to_owned(), |growth| growth.to_string());
            println!("{} {growth}", case.name);
        }
        return Ok(());
    };
    let case = Case::ALL.into_iter().find(|case| case.name == name);
    let meter = case.ok_or_else(|| format!("no case '{name}'"))?.measure(size.parse()?)?;
    println!("{} {:.0?}", meter.parts(), meter.ns());
    Ok(())
}
