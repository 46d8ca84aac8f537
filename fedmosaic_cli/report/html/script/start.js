startSorting();
startCopying();
startRuns();
startSections();
startExplorer();
startComparison();
const redrawShards = startShards();
startTheme(redrawShards);
