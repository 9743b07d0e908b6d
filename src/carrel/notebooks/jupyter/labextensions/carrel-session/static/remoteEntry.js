// A module federation container, written by hand: JupyterLab loads this file, hands over the scope with its own modules, and asks
// for "./extension" (https://jupyterlab.readthedocs.io/en/stable/extension/extension_dev.html, "Prebuilt Extensions").
(() => {
  const here = document.currentScript.src;
  const NEEDED = [
    '@jupyterlab/application',
    '@jupyterlab/apputils',
    '@jupyterlab/coreutils',
    '@jupyterlab/notebook',
    '@jupyterlab/services',
    '@jupyterlab/statusbar',
    '@jupyterlab/ui-components',
    '@lumino/widgets'
  ];
  let scope = null;

  const shared = async name => {
    const versions = Object.values((scope && scope[name]) || {});
    if (versions.length === 0) {
      throw new Error(`JupyterLab does not share ${name}`);
    }
    return (await versions[0].get())();
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB['carrel-session'] = {
    init: shareScope => {
      scope = shareScope;
    },
    get: async () => {
      const [own, ...modules] = await Promise.all([
        import(new URL('plugins.js', here).href),
        ...NEEDED.map(shared)
      ]);
      const lab = Object.assign({}, ...modules);
      return () => ({ __esModule: true, default: own.plugins(lab) });
    }
  };
})();
